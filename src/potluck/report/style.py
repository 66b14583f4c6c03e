"""How the page looks: one style sheet inside the page, for light and dark, wide and narrow."""

from __future__ import annotations

# Okabe and Ito's colours, darkened for white paper and lightened for a dark screen.
CSS = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#1b2230;--soft:#5a6475;--faint:#e3e7ed;--edge:#d5dae2;
--accent:#0072b2;--good:#00795a;--warn:#a14a00;--bad:#b3261e;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b8588f;--c4:#c98a00;--c5:#3a9bd6;--c6:#6b6f76;--c7:#8a7d00;--tower:#0b4f8a}
@media (prefers-color-scheme:dark){:root{--paper:#12151b;--card:#1a1f28;--ink:#e7ebf2;--soft:#a3adbd;--faint:#2a313d;
--edge:#343c4a;
--accent:#5bb4ec;--good:#4cd3a5;--warn:#ffab70;--bad:#ff8a80;
--c0:#4fa8e0;--c1:#ff8548;--c2:#2fc79a;--c3:#e49ac6;--c4:#f2b93b;--c5:#9ad8fa;--c6:#aeb6c2;--c7:#d9cc3f;--tower:#7cbcf0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
-webkit-text-size-adjust:100%;font-variant-numeric:tabular-nums}
main,header,footer{max-width:1160px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
.brand{color:var(--soft);font-size:14px;letter-spacing:.02em;display:flex;align-items:center;gap:8px}
.brand i{display:inline-block;width:9px;height:9px;border-radius:50%}
h1{font-size:clamp(24px,4vw,34px);line-height:1.2;margin:6px 0 4px;overflow-wrap:anywhere;letter-spacing:-.01em}
h2{font-size:21px;margin:40px 0 6px;letter-spacing:-.005em}
h3{font-size:16px;margin:22px 0 6px}
p{margin:6px 0 12px;max-width:76ch}
.lede{color:var(--soft);overflow-wrap:anywhere}
.verdict{border-left:4px solid var(--accent);background:var(--card);padding:12px 16px;border-radius:0 8px 8px 0;
margin:16px 0;max-width:none}
.verdict p{margin:4px 0;max-width:none;overflow-wrap:anywhere}
.verdict p:first-child{font-size:18px;font-weight:600}
.note{color:var(--soft);font-size:14px;max-width:110ch}
.chip{display:inline-block;border:1px solid currentColor;border-radius:99px;padding:0 9px;font-size:13px;
line-height:20px;white-space:nowrap}
.done{color:var(--good)}.running,.interrupted,.unknown{color:var(--warn)}.failed{color:var(--bad)}
.cards{display:grid;grid-template-columns:repeat(3,1fr);gap:12px;margin:16px 0}
.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:12px 14px;min-width:0}
.card b{display:block;font-size:25px;line-height:1.25;font-weight:650;letter-spacing:-.01em}
.card span{display:block;font-size:13px;color:var(--soft);overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:14px;margin:12px 0}
.charts.small{grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}
figure{margin:0;background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:12px 14px;min-width:0;
container-type:inline-size}
.charts figure{display:flex;flex-direction:column}
figcaption{font-weight:600;font-size:15px;overflow-wrap:anywhere}
figure .note{margin:2px 0 0;font-weight:400}
svg.chart{display:block;width:100%;max-width:640px;height:auto;margin-top:auto;padding-top:6px;touch-action:pan-y;overflow:visible}
svg.chart text{font-size:14px;fill:var(--soft)}
svg.chart text.title{font-size:13.5px}
@container (min-width:400px){svg.chart text{font-size:12px}svg.chart text.title{font-size:12px}}
@container (min-width:490px){svg.chart text{font-size:11px}svg.chart text.title{font-size:11px}}
.grid{stroke:var(--faint);stroke-width:1}.base,.tick{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke-width:1.9;stroke-linejoin:round;stroke-linecap:round}.line.thick{stroke-width:2.8}.line.thin{stroke-width:1.2}
.band{opacity:.17}.dots circle{stroke:var(--card);stroke-width:1}.columns rect{opacity:.55}
.cursor line{stroke:var(--soft);stroke-dasharray:3 3}
.upright{stroke:var(--ink);stroke-width:1.6;stroke-dasharray:5 3}
svg.chart text.word{fill:var(--ink);paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.strips{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:14px;margin:12px 0}
.strip{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:10px 14px;min-width:0}
.strip svg{display:block;width:100%;height:64px;margin:6px 0 2px;border-bottom:1px solid var(--soft);
touch-action:pan-y;shape-rendering:crispEdges}
.strip div{display:flex;flex-wrap:wrap;gap:0 10px;font-size:13.5px;color:var(--soft)}
.strip div>:last-child{margin-left:auto}
.strip div:first-child b{color:var(--ink);font-size:15px;overflow-wrap:anywhere}
.strip div:last-child{font-size:12.5px}.strip div:last-child b{color:var(--warn)}
.tower{fill:var(--tower)}.untrained{fill:var(--warn)}
.off{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 6px;margin:6px 0 2px}
.key{font:inherit;font-size:13.5px;line-height:1.3;color:var(--ink);background:none;border:1px solid var(--edge);
border-radius:99px;padding:3px 10px 3px 8px;
display:inline-flex;align-items:center;gap:6px;cursor:pointer;max-width:100%;overflow-wrap:anywhere;text-align:left}
.key:hover,.key:focus-visible{border-color:var(--soft)}
.key[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.key svg{width:20px;height:8px;flex:none}
.tip{position:fixed;z-index:9;pointer-events:none;background:var(--ink);color:var(--card);border-radius:7px;
padding:6px 10px;font-size:13px;line-height:1.4;
max-width:min(300px,90vw);box-shadow:0 4px 14px #0004;overflow-wrap:anywhere}
.tip div{display:flex;gap:7px;align-items:baseline}.tip i{flex:none;width:9px;height:9px;border-radius:50%}
.tip b{margin-left:auto;padding-left:12px;white-space:nowrap}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--edge);border-radius:10px;margin:12px 0;
-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:14.5px}
th,td{padding:7px 10px;text-align:right;white-space:nowrap;border-top:1px solid var(--faint)}
thead th{border-top:0;color:var(--soft);font-weight:600;font-size:13px;vertical-align:bottom}
thead .group{text-align:center;border-bottom:1px solid var(--faint);font-weight:500}
tr>:first-child{text-align:left}
tbody th{font-weight:600;position:sticky;left:0;background:var(--card);white-space:normal}
tbody th div{max-width:min(240px,38vw);overflow-wrap:break-word}
table.many{font-size:14px}table.many :is(th,td){padding:7px 7px}
table.words :is(th,td):not(:last-child){text-align:left}
table.words td{white-space:normal}
.heat td{background:color-mix(in srgb,var(--c0) var(--heat,0%),transparent)}.heat :is(td,thead th){text-align:center}
.best{font-weight:700;color:var(--good)}
.meters{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,235px),1fr));gap:14px;margin:12px 0}
.meter{display:grid;grid-template-columns:minmax(0,1fr) auto;gap:0 8px;font-size:14px;margin-top:8px}
.meter span{overflow-wrap:anywhere}
.meter div{grid-column:1/-1;height:9px;background:var(--faint);border-radius:5px;overflow:hidden}
.meter div i{display:block;height:100%;border-radius:5px}
details{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:0 16px;margin:12px 0}
details details{background:var(--paper)}
summary{cursor:pointer;padding:11px 0;font-weight:600;overflow-wrap:anywhere}
details>:last-child{margin-bottom:16px}
details .scroll{background:none}details tbody th{background:var(--card)}
pre{overflow-x:auto;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--paper);
border:1px solid var(--faint);border-radius:8px;padding:12px;margin:0}
.empty{color:var(--soft);font-style:italic}
a{color:var(--accent)}
footer{color:var(--soft);font-size:14px;padding-top:28px;padding-bottom:36px}
@media (max-width:600px){main,header,footer{padding-left:12px;padding-right:12px}h2{margin-top:30px}
.cards{grid-template-columns:1fr 1fr;gap:8px}.card{padding:10px}.card b{font-size:20px}
figure{padding:10px 8px}th,td{padding:7px 9px}}
@media print{body{background:#fff}figure,.card,tr{break-inside:avoid}.scroll{overflow:visible}}
"""
