// Text is set with textContent only: a name in a run folder may look like markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const make = (name, kind, into, text) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    if (into) into.append(made);
    return made;
  };
  const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const SVG = 'http://www.w3.org/2000/svg';
  const draw = (name, values, into) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    into.append(made);
    return made;
  };

  // Numbers as text, as the report writes them.
  const GAP = '—';
  const short = (value) => value === 0 ? '0' : Math.abs(value) >= 100 && Math.abs(value) < 1e6
    ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(3)));
  const scaled = (value, units) => {
    if (value === null || value === undefined) return GAP;
    const [factor, unit] = units.find(([size]) => Math.abs(value) >= size) || units[units.length - 1];
    return short(value / factor) + ' ' + unit;
  };
  const bytes = (value) => scaled(value, [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB'], [1, 'B']]);
  const joules = (value) => scaled(value, [[1e9, 'GJ'], [1e6, 'MJ'], [1e3, 'kJ'], [1, 'J'], [1e-3, 'mJ']]);
  const seconds = (value) => {
    if (value === null || value === undefined) return GAP;
    if (value < 120) return scaled(value, [[1, 's'], [1e-3, 'ms']]);
    const units = [[86400, 'd', 3600, 'h'], [3600, 'h', 60, 'min'], [60, 'min', 1, 's']];
    const [factor, unit, small, name] = units.find(([size]) => value >= size);
    const count = Math.round(value / small), whole = Math.floor(count / (factor / small)), rest = count % (factor / small);
    return whole + ' ' + unit + (rest ? ' ' + rest + ' ' + name : '');
  };
  const left = (row) => row.left === null ? GAP : 'about '
    + seconds(row.left >= 120 ? 60 * Math.round(row.left / 60) : Math.max(1, Math.round(row.left)));
  const score = (value, percent) => value === null || value === undefined ? GAP
    : percent ? (100 * value).toFixed(1) + ' %' : value.toFixed(3);
  const isPercent = (metric) => metric !== 'matthews' && metric !== 'pearson';
  const count = (value) => value === null || value === undefined ? GAP : value.toLocaleString('en');
  const moment = (value) => { const at = new Date(value); return isNaN(at) ? '' : at.toLocaleString(); };

  const rows = new Map(), details = new Map(), gone = new Set(), lines = new Map(), panels = new Map();
  let picked = location.hash.slice(1).split('+').filter((id) => /^[0-9a-f]{16}$/.test(id)).slice(0, 2);
  let source = null, polite = false, leftOut = 0, heard = false;
  if (location.search) history.replaceState(null, '', location.pathname + location.hash);

  const tip = make('div', 'tip', document.body);
  tip.hidden = true;
  const showTip = (event) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), left = event.clientX + 14;
    tip.style.left = Math.max(4, left + box.width > innerWidth - 4 ? event.clientX - box.width - 14 : left) + 'px';
    tip.style.top = Math.max(4, Math.min(innerHeight - box.height - 4, event.clientY + 14)) + 'px';
  };
  const hideTip = () => { tip.hidden = true; };

  // The stream: the browser connects again by itself; a hidden page lets go of it, so that others have room.
  const say = (kind, text) => { byId('link').className = 'chip ' + kind; write(byId('link'), text); };
  const connect = () => {
    if (source) source.close();
    source = null;
    if (document.hidden) return;
    const own = source = new EventSource('/events?' + picked.map((id) => 'run=' + id).join('&'));
    own.onopen = () => { polite = false; say('done', 'live'); };
    own.onerror = () => {
      if (own !== source) return;
      if (!polite) say('dead', 'no connection');
      if (own.readyState === EventSource.CLOSED) setTimeout(() => { if (own === source) connect(); }, 3000);
    };
    own.addEventListener('pause', () => { polite = true; });
    own.addEventListener('runs', (event) => takeRuns(JSON.parse(event.data)));
    own.addEventListener('run', (event) => takeRun(JSON.parse(event.data)));
  };
  document.addEventListener('visibilitychange', connect);
  addEventListener('pagehide', () => { if (source) source.close(); });

  const takeRuns = (told) => {
    heard = true;
    if (told.whole) for (const id of rows.keys()) gone.add(id);
    for (const id of told.gone) gone.add(id);
    for (const row of told.rows) { rows.set(row.id, row); gone.delete(row.id); }
    leftOut = told.left_out;
    if (!picked.length) {
      const first = sorted().find((row) => !gone.has(row.id));
      if (first) { pick([first.id]); return; }
    }
    render();
  };
  const takeRun = (told) => {
    const known = details.get(told.id);
    if (told.first && (!known || known.points.length < told.first)) { connect(); return; }
    const points = told.first ? known.points.slice(0, told.first).concat(told.points) : told.points;
    details.set(told.id, {...told, points});
    render();
  };
  const pick = (ids) => {
    picked = ids.slice(-2);
    history.replaceState(null, '', location.pathname + '#' + picked.join('+'));
    connect();
    render();
  };
  const sorted = () => [...rows.values()].sort((a, b) => (b.status === 'running') - (a.status === 'running')
    || (a.started < b.started) - (a.started > b.started) || (a.folder < b.folder ? -1 : 1));

  let due = false;
  const render = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; renderList(); renderPanels(); });
  };
  const statusText = (row) => {
    if (gone.has(row.id)) return 'folder deleted';
    if (row.status === 'diverged' && row.fault_round) return 'diverged in round ' + count(row.fault_round);
    return row.status + (row.where ? ' on ' + row.where : '');
  };
  const statusKind = (row) => 'chip ' + (gone.has(row.id) ? 'deleted' : row.status);
  const progressText = (row) => count(row.done) + (row.rounds === null ? '' : ' / ' + count(row.rounds));
  const share = (row) => row.rounds ? Math.min(100, 100 * row.done / row.rounds) + '%' : '0%';

  const makeLine = (id) => {
    const tr = make('tr'), box = make('input', '', make('td', '', tr));
    box.type = 'checkbox';
    box.setAttribute('aria-label', 'side by side');
    box.addEventListener('change', () => pick(box.checked ? [...picked, id] : picked.filter((one) => one !== id)));
    const cell = make('td', 'name', tr), name = make('button', 'name', cell), folder = make('small', '', cell);
    name.type = 'button';
    name.addEventListener('click', () => { pick([id]); byId('title').scrollIntoView({block: 'nearest'}); });
    const chip = make('span', '', make('td', '', tr)), rounds = make('td', '', tr), told = make('span', '', rounds);
    const bar = make('i', '', make('div', 'meter', rounds));
    const value = make('td', '', tr), rest = make('td', 'wide', tr), started = make('td', 'wide', tr);
    return {tr, box, name, folder, chip, told, bar, value, rest, started};
  };
  const renderList = () => {
    const wanted = byId('filter').value.trim().toLowerCase(), body = byId('rows');
    let at = body.firstChild, shown = 0, running = 0;
    for (const row of sorted()) {
      const line = lines.get(row.id) || makeLine(row.id), isGone = gone.has(row.id);
      lines.set(row.id, line);
      running += row.status === 'running' && !isGone;
      line.tr.hidden = !!wanted && !(row.label + ' ' + row.folder + ' ' + statusText(row)).toLowerCase().includes(wanted);
      shown += !line.tr.hidden;
      line.tr.className = (picked.includes(row.id) ? 'picked ' : '') + (isGone ? 'gone' : '');
      line.box.checked = picked.includes(row.id);
      write(line.name, row.label);
      write(line.folder, row.folder + (row.seed === null ? '' : ', seed ' + row.seed));
      line.chip.className = statusKind(row);
      write(line.chip, statusText(row));
      write(line.told, progressText(row));
      line.bar.style.width = share(row);
      write(line.value, score(row.score, isPercent(row.metric)));
      write(line.rest, row.status === 'running' && !isGone ? left(row) : '');
      write(line.started, moment(row.started));
      if (at === line.tr) at = at.nextSibling; else body.insertBefore(line.tr, at);
    }
    byId('all').hidden = !rows.size;
    byId('empty').hidden = !heard || rows.size > 0;
    write(byId('empty'), 'There are no runs in this folder yet. New ones appear here by themselves.');
    const more = leftOut ? 'Only the first ' + count(rows.size) + ' runs are shown; ' + count(leftOut) + ' more are there.' : '';
    write(byId('more'), wanted && !shown ? 'No run fits the filter.' : more);
    write(byId('title'), rows.size ? count(rows.size) + (rows.size === 1 ? ' run' : ' runs')
      + (running ? ', ' + count(running) + ' going on' : '') : 'Runs');
    document.title = (running ? running + ' going on · ' : '') + 'Potluck board';
  };
  byId('filter').addEventListener('input', render);

  // Ticks at 1, 2 or 5 times a power of ten.
  const ticks = (low, high, most) => {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at + 0);
    return [found, step];
  };
  const scale = (shown) => {
    const all = shown.flatMap((detail) => detail.points);
    const values = all.flatMap((point) => point.slice(1)).filter((value) => value !== null);
    if (!values.length) return null;
    let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 0.05;
    low -= room; high += room;
    const percent = shown.every((detail) => detail.percent);
    if (percent) { low = Math.max(low, 0); high = Math.min(high, 1); }
    if (!(high > low)) { low -= 0.05; high += 0.05; }
    return {low, high, percent, last: Math.max(1, all.reduce((most, point) => Math.max(most, point[0]), 0)),
      first: all.reduce((least, point) => Math.min(least, point[0]), Infinity)};
  };
  const colour = (index) => index === 0 ? 'var(--ink)' : 'var(--c' + (index - 1) % 8 + ')';
  const dash = (index) => ['', '7 3', '2 3'][Math.floor(Math.max(0, index - 1) / 8) % 3];

  const BOX = {width: 520, height: 240, left: 46, right: 8, top: 8, bottom: 34};
  const drawCurve = (svg, detail, axes, names) => {
    svg.replaceChildren();
    if (!axes) return;
    const {width, height, left, right, top, bottom} = BOX;
    const span = Math.max(axes.last - axes.first, 1);
    const x = (round) => left + (round - axes.first) / span * (width - left - right);
    const y = (value) => height - bottom - (value - axes.low) / (axes.high - axes.low) * (height - top - bottom);
    const [levels, step] = ticks(axes.low, axes.high, 5);
    const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(axes.percent ? 100 * step : step) + 1e-9)));
    for (const level of levels) {
      draw('line', {class: 'grid', x1: left, x2: width - right, y1: y(level), y2: y(level)}, svg);
      draw('text', {x: left - 6, y: y(level) + 4, 'text-anchor': 'end'}, svg).textContent =
        axes.percent ? (100 * level).toFixed(digits) + ' %' : level.toFixed(digits);
    }
    draw('line', {class: 'base', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}, svg);
    for (const round of ticks(axes.first, axes.last, 6)[0].filter((each) => Number.isInteger(each))) {
      draw('text', {x: x(round), y: height - bottom + 16, 'text-anchor': 'middle'}, svg).textContent = count(round);
    }
    draw('text', {x: (left + width - right) / 2, y: height - 2, 'text-anchor': 'middle'}, svg).textContent = 'round';
    names.forEach((name, index) => {
      const known = detail.points.filter((point) => point[index + 1] !== null && point[index + 1] !== undefined);
      if (!known.length) return;
      const path = known.map((point) => x(point[0]).toFixed(1) + ',' + y(point[index + 1]).toFixed(1)).join(' ');
      const line = draw('polyline', {class: 'line' + (index ? '' : ' thick'), points: path}, svg);
      line.style.stroke = colour(index);
      if (dash(index)) line.setAttribute('stroke-dasharray', dash(index));
      const end = known[known.length - 1];
      draw('circle', {cx: x(end[0]), cy: y(end[index + 1]), r: index ? 2.4 : 3.2}, svg).style.fill = colour(index);
    });
    const cursor = draw('line', {class: 'cursor', y1: top, y2: height - bottom, x1: 0, x2: 0, visibility: 'hidden'}, svg);
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * width;
      if (!detail.points.length) return;
      const near = detail.points.reduce((a, b) => Math.abs(x(b[0]) - at) < Math.abs(x(a[0]) - at) ? b : a);
      for (const key of ['x1', 'x2']) cursor.setAttribute(key, x(near[0]));
      cursor.setAttribute('visibility', 'visible');
      tip.replaceChildren();
      make('div', '', tip, 'round ' + count(near[0]));
      names.forEach((name, index) => {
        if (near[index + 1] === null || near[index + 1] === undefined) return;
        const row = make('div', '', tip);
        make('i', '', row).style.background = colour(index);
        make('span', '', row, name);
        make('b', '', row, score(near[index + 1], axes.percent));
      });
      showTip(event);
    };
    svg.onpointerleave = () => { cursor.setAttribute('visibility', 'hidden'); hideTip(); };
  };
  const drawCohorts = (svg, rounds) => {
    svg.replaceChildren();
    const most = Math.max(1, ...rounds.map((each) => each.asked || 0));
    const wide = 600 / Math.max(rounds.length, 12);
    rounds.forEach((each, index) => {
      const asked = each.asked || 0, answered = each.answered || 0, refused = each.refused || 0;
      let bottom = 60;
      for (const [kind, number] of [['answered', answered], ['refused', refused], ['absent', asked - answered - refused]]) {
        if (number <= 0) continue;
        const tall = 60 * number / most;
        bottom -= tall;
        draw('rect', {class: kind, x: index * wide + 1, y: bottom, width: Math.max(wide - 2, 1), height: tall}, svg);
      }
    });
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect(), index = Math.floor((event.clientX - box.left) / box.width * 600 / wide);
      const each = rounds[Math.min(index, rounds.length - 1)];
      if (!each) return;
      tip.replaceChildren();
      make('div', '', tip, 'round ' + count(each.round) + ': ' + count(each.asked) + ' asked, ' + count(each.answered)
        + ' answered, ' + count(each.refused) + ' refused');
      showTip(event);
    };
    svg.onpointerleave = hideTip;
  };

  const CARDS = ['round', 'score', 'time left', 'bytes', 'modelled time', 'modelled energy'];
  const makePanel = (id) => {
    const panel = make('article', 'panel'), top = make('div', 'top', panel);
    const title = make('h2', '', top), chip = make('span', '', top), stop = make('button', 'stop', top, 'Stop');
    stop.type = 'button';
    stop.addEventListener('click', () => askToStop(id, stop));
    const folder = make('p', 'note', panel), answer = make('p', 'note', panel), reason = make('p', 'reason', panel);
    const cards = make('div', 'cards', panel), card = {};
    answer.setAttribute('role', 'status');
    for (const name of CARDS) {
      const one = make('div', 'card', cards), head = make('span', '', one, name);
      card[name] = {head, value: make('b', '', one), note: make('span', '', one)};
    }
    card.bar = make('i', '', make('div', 'meter', card.round.value.parentNode));
    const charts = make('div', 'charts', panel);
    const curve = make('div', '', charts), head = make('h3', '', curve), legend = make('div', 'legend', curve);
    const chart = draw('svg', {viewBox: '0 0 ' + BOX.width + ' ' + BOX.height, role: 'img', class: 'curve'}, curve);
    const cohorts = make('div', '', charts);
    make('h3', '', cohorts, 'Clients of the last rounds');
    const states = make('div', 'states', cohorts);
    for (const kind of ['answered', 'refused', 'absent']) {
      make('i', kind, make('span', '', states)).after(kind);
    }
    const bars = draw('svg', {viewBox: '0 0 600 60', preserveAspectRatio: 'none', class: 'bars', role: 'img'}, cohorts);
    const now = make('p', 'note', cohorts), faults = make('div', '', cohorts), faultHead = make('h3', '', faults);
    const table = make('table', 'words', make('div', 'scroll', faults)), names = make('tr', '', make('thead', '', table));
    for (const name of ['round', 'client', 'tier', 'what', 'why']) make('th', '', names, name).scope = 'col';
    const faultRows = make('tbody', '', table), warnings = make('div', '', panel);
    make('h3', '', warnings, 'Warnings');
    const warningList = make('ul', '', warnings);
    return {panel, title, chip, stop, folder, answer, reason, card, curve, head, legend, chart, cohorts, bars, now, faults,
      faultHead, faultRows, warnings, warningList};
  };
  const askToStop = async (id, button) => {
    if (!confirm('Stop this run? It saves, and can be resumed. A comparison that it is part of stops, too.')) return;
    button.disabled = true;
    let told = 'The board gives no answer.';
    try {
      const answer = await fetch('/stop/' + id, {method: 'POST'});
      told = (await answer.json()).told;
    } catch { /* told as it is */ }
    if (panels.has(id)) write(panels.get(id).answer, told);
    setTimeout(() => { button.disabled = false; }, 3000);
  };
  const renderPanels = () => {
    const holder = byId('chosen'), shown = picked.filter((id) => rows.has(id));
    for (const [id, made] of panels) if (!shown.includes(id)) { made.panel.remove(); panels.delete(id); }
    holder.classList.toggle('two', shown.length === 2);
    const axes = scale(shown.map((id) => details.get(id)).filter(Boolean));
    shown.forEach((id, place) => {
      const made = panels.get(id) || makePanel(id);
      panels.set(id, made);
      if (holder.children[place] !== made.panel) holder.insertBefore(made.panel, holder.children[place] || null);
      renderPanel(made, rows.get(id), details.get(id), axes);
    });
  };
  const renderPanel = (made, row, detail, axes) => {
    const isGone = gone.has(row.id), {card} = made, totals = (detail && detail.totals) || {};
    made.panel.classList.toggle('gone', isGone);
    write(made.title, row.label);
    made.chip.className = statusKind(row);
    write(made.chip, statusText(row));
    made.stop.hidden = !row.can_stop || isGone;
    if (row.status !== 'running') write(made.answer, '');
    made.answer.hidden = !made.answer.textContent;
    const since = detail && detail.latest ? ', last news at ' + new Date(1000 * detail.latest).toLocaleTimeString() : '';
    write(made.folder, [row.name, row.folder, row.seed === null ? '' : 'seed ' + row.seed].filter(Boolean).join(', ')
      + (row.status === 'running' ? since : ''));
    const goOn = row.status === 'dead' ? 'It says that it is running, but its process is gone. `potluck resume` goes on with it.' : '';
    const why = isGone ? 'This folder was deleted; what is shown was read before.' : row.reason || goOn;
    made.reason.hidden = !why;
    write(made.reason, why);
    write(card.round.value, progressText(row));
    write(card.round.note, '');
    card.bar.style.width = share(row);
    write(card.score.head, (detail ? detail.metric : row.metric) + ', test');
    write(card.score.value, score(row.score, isPercent(row.metric)));
    write(card['time left'].value, row.status === 'running' && !isGone ? left(row) : GAP);
    write(card['time left'].note, totals.seconds ? seconds(totals.seconds) + ' in rounds so far' : '');
    const moved = totals.bytes_down === undefined ? null : totals.bytes_down + (totals.bytes_up || 0);
    write(card.bytes.value, bytes(moved));
    write(card.bytes.note, moved === null ? '' : bytes(totals.bytes_down) + ' down, ' + bytes(totals.bytes_up) + ' up');
    write(card['modelled time'].value, seconds(totals.round_seconds));
    write(card['modelled time'].note, totals.round_seconds > totals.device_seconds ? seconds(totals.device_seconds) + ' without the server' : '');
    write(card['modelled energy'].value, joules(totals.joules));
    made.curve.hidden = made.cohorts.hidden = !detail;
    if (!detail) { made.faults.hidden = made.warnings.hidden = true; return; }
    const names = ['all (server’s model)', ...detail.names], known = detail.points.length > 0;
    write(made.head, known ? 'Test ' + detail.metric + ' by tier' : 'No scores yet');
    const legend = names.map((name, index) => [name, index])
      .filter(([, index]) => detail.points.some((point) => point[index + 1] !== null && point[index + 1] !== undefined));
    const key = JSON.stringify(legend);
    if (made.legendKey !== key) {
      made.legendKey = key;
      made.legend.replaceChildren();
      for (const [name, index] of legend) {
        const entry = make('span', '', made.legend), sample = make('i', '', entry);
        sample.style.background = colour(index);
        entry.append(name);
      }
    }
    const drawn = JSON.stringify([axes, detail.points.length, detail.points[detail.points.length - 1], key]);
    if (made.drawn !== drawn || made.detail !== detail) { made.drawn = drawn; drawCurve(made.chart, detail, known ? axes : null, names); }
    made.chart.classList.toggle('hidden', !known);
    if (made.detail !== detail) {
      drawCohorts(made.bars, detail.last_rounds);
      const rounds = detail.last_rounds, first = rounds.length ? rounds[0].round : 0;
      const span = rounds.length ? 'Rounds ' + count(first) + ' to ' + count(rounds[rounds.length - 1].round) + '. ' : 'No round is done yet. ';
      const going = row.status === 'running' && detail.now.asked ? 'Round ' + count(row.done + 1) + ': ' + count(detail.now.answered)
        + ' of about ' + count(detail.cohort) + ' have answered so far' + (detail.now.refused ? ', ' + count(detail.now.refused) + ' were refused' : '') + '.' : '';
      write(made.now, span + going);
      made.faults.hidden = !detail.faults.length;
      write(made.faultHead, 'Refused and absent (the last ' + detail.faults.length + ')');
      made.faultRows.replaceChildren();
      for (const fault of [...detail.faults].reverse()) {
        const tr = make('tr', '', made.faultRows);
        for (const text of [count(fault.round), fault.client, fault.tier, fault.outcome === 'quarantined' ? 'refused' : fault.outcome, fault.reason]) make('td', '', tr, text);
      }
      made.warnings.hidden = !detail.warnings.length;
      made.warningList.replaceChildren();
      for (const warning of [...detail.warnings].reverse()) make('li', '', made.warningList, warning.text);
      made.detail = detail;
    }
  };
  connect();
})();
