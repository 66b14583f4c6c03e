// Tables: sorted by a click on a heading, read by arrow keys, a row's method alone in the charts.
const GAP = '—';
const entry = (cell) => (cell.dataset.name || cell.textContent).trim();
const amount = (cell) => cell.dataset.value === undefined ? null : Number(cell.dataset.value);
const sorted = (rows, column, falling) => {
  const numeric = rows.some((row) => row.cells[column].dataset.value !== undefined);
  const keys = new Map(rows.map((row) => {
    const text = entry(row.cells[column]), key = numeric ? amount(row.cells[column]) : text;
    return [row, text === '' || text === GAP ? null : key];
  }));
  const compare = (a, b) => numeric ? a - b : a.localeCompare(b, 'en', {numeric: true});
  return [...rows].sort((a, b) => {
    const lost = Number(a.matches('.no-result')) - Number(b.matches('.no-result'));
    const x = keys.get(a), y = keys.get(b);
    if (lost || x === null || y === null) return lost || Number(x === null) - Number(y === null);
    return falling ? compare(y, x) : compare(x, y);
  });
};
const sortable = (table) => {
  const body = table.tBodies[0], order = [...body.rows], heads = [...table.tHead.lastElementChild.cells];
  if (order.length < 2) return;
  heads.forEach((head, column) => {
    const words = head.textContent, control = document.createElement('button');
    control.type = 'button'; control.className = 'sort';
    control.textContent = words || (column ? '' : JSON.parse(table.dataset.names || '[""]')[0]);
    if (!control.textContent) control.setAttribute('aria-label', 'name');
    head.replaceChildren(control);
    const first = order.some((row) => row.cells[column].dataset.value !== undefined) ? 'descending' : 'ascending';
    const second = first === 'ascending' ? 'descending' : 'ascending';
    control.addEventListener('click', () => {
      const next = {[first]: second, [second]: ''}[head.getAttribute('aria-sort')] ?? first;
      for (const other of heads) other.removeAttribute('aria-sort');
      if (next) head.setAttribute('aria-sort', next);
      body.append(...(next ? sorted(order, column, next === 'descending') : order));
    });
  });
};
const choosable = (table) => {
  const scope = outermost(table, '[data-scope]');
  if (!scope) return;
  const drawn = new Set([...scope.querySelectorAll('svg.chart [data-key]')].map((node) => node.dataset.key));
  for (const row of table.querySelectorAll('tr[data-key]')) {
    if (!drawn.has(row.dataset.key)) continue;
    const name = row.cells[0].firstElementChild, pick = document.createElement('button');
    pick.type = 'button'; pick.className = 'pick'; pick.dataset.key = row.dataset.key; pick.textContent = name.textContent;
    pick.setAttribute('aria-pressed', 'false'); pick.title = 'Show it alone in the charts of this part';
    name.replaceChildren(pick);
    row.classList.add('choice');
    row.addEventListener('click', (event) => {
      if (!event.target.closest('button') && !String(getSelection())) solo(scope, row.dataset.key);
    });
  }
};
// One stop for the tab key in each table; arrow keys go from cell to cell, Enter chooses the row.
const walkable = (table) => {
  const stop = (cell) => cell.querySelector('.pick') || cell;
  const all = [...table.tBodies].flatMap((body) => [...body.rows].flatMap((row) => [...row.cells]));
  if (!all.some((cell) => cell.dataset.tip || cell.querySelector('.pick'))) return;
  all.forEach((cell, index) => { stop(cell).tabIndex = index ? -1 : 0; });
  table.addEventListener('keydown', (event) => {
    const cell = event.target.closest('td, tbody th');
    if (!cell) return;
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]), row = rows.indexOf(cell.parentElement);
    const [down, along] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key] || [0, 0];
    if (event.key === 'Enter' && cell.parentElement.matches('.choice') && event.target === cell) {
      solo(outermost(table, '[data-scope]'), cell.parentElement.dataset.key);
    }
    const next = (down || along) && rows[row + down] && rows[row + down].cells[cell.cellIndex + along];
    if (!next) return;
    event.preventDefault();
    stop(cell).tabIndex = -1; stop(next).tabIndex = 0; stop(next).focus();
    stop(next).scrollIntoView({block: 'nearest', inline: 'nearest'});
  });
};
for (const table of document.querySelectorAll('table[data-title]')) {
  choosable(table); walkable(table);
}
