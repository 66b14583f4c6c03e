// Tables as CSV files and charts as SVG files.
const download = (title, ending, type, text) => {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = (title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0, 80) || 'potluck') + ending;
  document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
};

// Text that a spreadsheet would take for a formula is quoted; numbers have all their digits, and ± is a column.
const field = (text) => {
  const safe = /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
};
const csv = (table) => {
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]), [above, heads] = [table.tHead.rows[0], table.tHead.lastElementChild];
  const names = JSON.parse(table.dataset.names || '[]');
  const groups = above === heads ? [] : [...above.cells].flatMap((cell) => Array(cell.colSpan).fill(cell.textContent));
  const columns = [...heads.cells].flatMap((head, column) => {
    const name = names[column] || [groups[column], head.textContent].filter(Boolean).join(': ') || 'name';
    const cells = rows.map((row) => row.cells[column]), some = (what) => cells.some((cell) => cell.dataset[what] !== undefined);
    const text = (cell) => entry(cell) === GAP ? '' : field(entry(cell));
    const found = [[field(name), ...cells.map((cell) => cell.dataset.value ?? (some('value') && !column ? '' : text(cell)))]];
    if (some('sd')) found.push([field(name + ' sd'), ...cells.map((cell) => cell.dataset.sd ?? '')]);
    if (some('note')) found.push(['note', ...cells.map((cell) => field(cell.dataset.note ?? ''))]);
    return found;
  });
  return columns[0].map((_, line) => columns.map((column) => column[line]).join(',') + '\r\n').join('');
};

const LOOK = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-dashoffset', 'stroke-linejoin',
  'stroke-linecap', 'opacity', 'font-size', 'font-family', 'font-weight', 'text-anchor', 'paint-order'];
const standalone = (svg, title) => {
  const root = document.documentElement, space = svg.namespaceURI, copy = svg.cloneNode(true);
  const view = svg.viewBox.baseVal, from = [...svg.querySelectorAll('*')], to = [...copy.querySelectorAll('*')];
  const add = (name, values, into, words) => {
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    if (words !== undefined) made.textContent = words;
    into.append(made);
    return made;
  };
  root.classList.add('light');  // the file is white, whatever the screen is
  from.forEach((node, index) => {
    const style = getComputedStyle(node);
    to[index].setAttribute('style', LOOK.map((name) => name + ':' + style.getPropertyValue(name)).join(';'));
    for (const {name} of [...to[index].attributes]) {
      if (name === 'class' || name === 'tabindex' || name.startsWith('data-')) to[index].removeAttribute(name);
    }
    if (node.matches('.off, .cursor')) to[index].remove();
  });
  const drawn = new Set([...svg.querySelectorAll('[data-key]:not(.off):not(.behind)')].map((node) => node.dataset.key));
  const inside = svg.closest('figure').querySelectorAll('.key'), named = inside.length ? inside : (scopeOf(svg) || svg).querySelectorAll('.key');
  const font = getComputedStyle(svg.querySelector('text')), size = parseFloat(font.fontSize);
  const keys = add('g', {style: 'font-size:' + size + 'px;font-family:' + font.fontFamily.replaceAll('"', "'") + ';fill:#333'}, copy);
  let x = 8, y = view.height + size, lines = 0;
  const told = new Set();
  for (const key of named) {
    if (!drawn.has(key.dataset.key) || told.has(key.dataset.key)) continue;
    told.add(key.dataset.key);
    const wide = 34 + 0.6 * size * key.textContent.length, line = key.querySelector('line');
    if (x > 8 && x + wide > view.width) { x = 8; y += 1.5 * size; }
    const stroke = getComputedStyle(line).stroke, dash = line.getAttribute('stroke-dasharray');
    add('line', {x1: x, x2: x + 20, y1: y - size / 3, y2: y - size / 3, style: 'stroke:' + stroke + ';stroke-width:2.5',
      ...(dash ? {'stroke-dasharray': dash} : {})}, keys);
    add('text', {x: x + 25, y}, keys, key.textContent);
    x += wide; lines = y + size / 2 - view.height;
  }
  root.classList.remove('light');
  for (const name of ['class', 'tabindex', 'data-chart', 'data-zero', 'role', 'aria-label']) copy.removeAttribute(name);
  const height = view.height + lines;
  copy.setAttribute('viewBox', '0 0 ' + view.width + ' ' + height);
  copy.setAttribute('width', view.width); copy.setAttribute('height', height);
  copy.prepend(add('rect', {width: view.width, height, fill: '#ffffff'}, copy));
  copy.prepend(add('title', {}, copy, title));
  // XML has no place for control characters, which a name may hold.
  return '<?xml version="1.0" encoding="UTF-8"?>\n'
    + new XMLSerializer().serializeToString(copy).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, '\ufffd');
};

for (const table of document.querySelectorAll('table[data-title]')) {
  const tools = document.createElement('div');
  tools.className = 'tools';
  button('save as CSV', tools, 'save').addEventListener('click', () => download(table.dataset.title, '.csv', 'text/csv', csv(table)));
  table.parentElement.after(tools);
}
for (const svg of document.querySelectorAll('figure svg.chart')) {
  const caption = svg.closest('figure').querySelector('figcaption'), title = svg.getAttribute('aria-label') || caption.textContent;
  button('save as SVG', caption, 'save').addEventListener('click', () =>
    download(title, '.svg', 'image/svg+xml', standalone(svg, title)));
}
for (const table of document.querySelectorAll('table[data-title]')) sortable(table);
