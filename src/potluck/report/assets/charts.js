// Charts: values at the pointer or by arrow keys, one series alone, an axis from zero, tabs.
const write = (axis, value) => axis.kind === 'percent' ? (100 * value).toFixed(1) + ' %'
  : Number(value.toPrecision(axis.kind === 'whole' ? 9 : 4)).toLocaleString('en')
    + (axis.unit ? ' ' + axis.unit : '');
const place = (axis, value) => axis.start + (axis.end - axis.start) * (axis.log
  ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : (value - axis.low) / (axis.high - axis.low));
const spread = (axis, value, found) => {
  if (!found || found[0] === null) return write(axis, value);
  const sd = axis.kind === 'percent' ? (100 * found[0]).toFixed(1) + ' %' : write(axis, found[0]);
  return write(axis, value).replace(/ %$/, '') + ' ± ' + sd + ', ' + found[1] + ' seeds';
};
const charts = new Map();

for (const svg of document.querySelectorAll('svg[data-chart]')) {
  const chart = JSON.parse(svg.dataset.chart), cursor = svg.querySelector('.cursor'), view = svg.viewBox.baseVal;
  charts.set(svg, chart);
  const seen = () => {
    const off = new Set([...svg.querySelectorAll('.off[data-key]')].map((node) => node.dataset.key));
    return chart.lines.filter((line) => line.points.length && !off.has(line.key));
  };
  const tell = (lines, at, spot) => {
    const nearest = (line) => line.points.reduce((best, point, index) =>
      Math.abs(place(chart.x, point[0]) - at) < Math.abs(place(chart.x, line.points[best][0]) - at) ? index : best, 0);
    const near = lines.map((line) => [line, nearest(line)]);
    const far = ([line, index]) => Math.abs(place(chart.x, line.points[index][0]) - at);
    const [line, index] = near.reduce((a, b) => far(b) < far(a) ? b : a);
    const lead = line.points[index][0], across = place(chart.x, lead);
    cursor.replaceChildren(); tip.replaceChildren();
    const draw = (name, values) => {
      const made = document.createElementNS(svg.namespaceURI, name);
      for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
      cursor.append(made);
    };
    draw('line', {x1: across, x2: across, y1: chart.y.start, y2: chart.y.end});
    make('div', chart.x.title + ' ' + write(chart.x, lead), tip);
    near.filter(([line, index]) => Math.abs(place(chart.x, line.points[index][0]) - across) < 6)
      .sort(([a, i], [b, j]) => b.points[j][1] - a.points[i][1]).forEach(([line, index]) => {
        const [x, y] = line.points[index];
        draw('circle', {cx: place(chart.x, x), cy: place(chart.y, y), r: 3.6, style: 'fill:' + line.colour});
        const row = make('div', '', tip);
        make('i', '', row).style.background = line.colour;
        make('span', line.label, row);
        make('b', spread(chart.y, y, (line.spreads || [])[index]), row);
      });
    show(spot || middle(cursor.firstChild));
    return lead;
  };
  const clear = () => { cursor.replaceChildren(); };
  const point = (event) => {
    const box = svg.getBoundingClientRect(), lines = seen();
    if (lines.length) tell(lines, (event.clientX - box.left) / box.width * view.width, event);
  };
  svg.addEventListener('pointermove', point);
  svg.addEventListener('pointerdown', point);
  svg.addEventListener('pointerleave', (event) => { if (event.pointerType !== 'touch') { clear(); hide(); } });
  svg.addEventListener('focusout', clear);
  let at = null;
  arrows(svg, (step) => {
    const lines = seen(), places = [...new Set(lines.flatMap((line) => line.points.map((one) => one[0])))].sort((a, b) => a - b);
    if (!places.length) return;
    at = tell(lines, place(chart.x, places[follow(places.indexOf(at), step, places.length)]));
  });
}

// The next of `many` places; from none (-1), the first or the last.
function follow(now, step, many) {
  const from = now < 0 && step === -1 ? many : now;
  return Math.max(0, Math.min(many - 1, from + step));
}
function arrows(svg, go) {
  svg.tabIndex = 0;
  const steps = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity};
  svg.addEventListener('keydown', (event) => {
    if (event.key in steps) { event.preventDefault(); go(steps[event.key]); }
  });
}

// Dots and bars that tell something: arrow keys go from one to the next, from left to right.
for (const svg of document.querySelectorAll('svg.chart:not([data-chart])')) {
  if (!svg.querySelector('[data-tip]')) continue;
  let now = -1;
  const clear = () => { for (const node of svg.querySelectorAll('.here')) node.classList.remove('here'); };
  arrows(svg, (step) => {
    const told = [...svg.querySelectorAll('[data-tip]')].filter((node) => !node.closest('.off'));
    told.sort((a, b) => middle(a).clientX - middle(b).clientX);
    if (!told.length) return;
    now = follow(now, step, told.length);
    clear(); told[now].classList.add('here'); say(told[now].dataset.tip, middle(told[now]));
  });
  svg.addEventListener('focusout', clear);
}

for (const svg of document.querySelectorAll('svg[data-strip]')) {
  const strip = JSON.parse(svg.dataset.strip), short = (value) => Number(value.toPrecision(4)).toLocaleString('en');
  const times = (told) => told === null ? 'unknown' : Array.isArray(told)
    ? short(told[0]) + ' times on average, ' + short(told[1]) + ' to ' + short(told[2])
    : short(told) + (told === 1 ? ' time' : ' times');
  const tell = (cell, spot) => {
    const first = cell * strip.size, last = Math.min(strip.units, first + strip.size) - 1;
    const name = first === last ? 'unit ' + short(first) : 'units ' + short(first) + ' to ' + short(last);
    say(name + ': ' + times(strip.cells[cell]), spot);
  };
  cells(svg, strip.cells.length, (share) => Math.floor(share * strip.units / strip.size), tell);
}
for (const svg of document.querySelectorAll('svg[data-presence]')) {
  const {rounds, size, cells: letters} = JSON.parse(svg.dataset.presence);
  const states = JSON.parse(svg.closest('[data-states]').dataset.states), whole = (value) => value.toLocaleString('en');
  const told = (cell) => {
    if (size === 1) return (states.find(([letter]) => letter === letters[cell]) || ['', 'not joined'])[1];
    const known = states.map(([, words], index) => [letters[cell][index], words]).filter(([count]) => count);
    return known.map(([count, words]) => count + ' ' + words).join(', ') || 'not joined';
  };
  const tell = (cell, spot) => {
    const first = cell * size + 1, last = Math.min(rounds, first + size - 1);
    const name = first === last ? 'round ' + whole(first) : 'rounds ' + whole(first) + ' to ' + whole(last);
    say(name + ': ' + told(cell), spot);
  };
  cells(svg, letters.length, (share) => Math.floor(share * rounds / size), tell);
}
function cells(svg, many, which, tell) {
  const inside = (cell) => Math.max(0, Math.min(many - 1, cell));
  const point = (event) => {
    const box = svg.getBoundingClientRect();
    tell(inside(which((event.clientX - box.left) / box.width)), event);
  };
  svg.addEventListener('pointermove', point);
  svg.addEventListener('pointerdown', point);
  svg.addEventListener('pointerleave', left);
  let now = -1;
  arrows(svg, (step) => {
    now = follow(now, step, many);
    const box = svg.getBoundingClientRect();
    tell(now, {clientX: box.left + (now + 0.5) / many * box.width, clientY: box.top + box.height / 2});
  });
}

// One series alone: a click on its name or its row, in all charts of the scope that have it. A second click shows all.
const outermost = (node, selector) => {
  let found = null;
  for (let at = node.closest(selector); at; at = at.parentElement && at.parentElement.closest(selector)) found = at;
  return found;
};
const scopeOf = (node) => outermost(node, '[data-scope]') || node.closest('figure');
const solo = (scope, key) => {
  const chosen = scope.dataset.solo === key ? '' : key;
  scope.dataset.solo = chosen;
  for (const svg of scope.querySelectorAll('svg.chart')) {
    const keyed = [...svg.querySelectorAll('[data-key]')], has = keyed.some((node) => node.dataset.key === chosen);
    for (const node of keyed) node.classList.toggle('off', has && node.dataset.key !== chosen);
  }
  for (const node of scope.querySelectorAll('button[data-key]')) {
    node.setAttribute('aria-pressed', String(node.dataset.key === chosen));
  }
  for (const row of scope.querySelectorAll('tr[data-key]')) row.classList.toggle('chosen', row.dataset.key === chosen);
  scope.classList.toggle('alone', Boolean(chosen));
};
document.addEventListener('click', (event) => {
  const key = event.target.closest('button[data-key]');
  if (key) solo(scopeOf(key), key.dataset.key);
});

for (const group of document.querySelectorAll('[data-tabs]')) {
  const parts = [...group.children], bar = document.createElement('div'), list = make('div', '', bar, 'tablist');
  bar.className = 'bar';
  list.setAttribute('role', 'tablist');
  const choose = (chosen) => parts.forEach((part, index) => {
    const on = index === chosen, tab = list.children[index];
    part.hidden = !on;
    tab.setAttribute('aria-selected', String(on)); tab.tabIndex = on ? 0 : -1;
  });
  parts.forEach((part, index) => {
    const tab = button(part.dataset.tab, list, 'tab');
    tab.setAttribute('role', 'tab'); part.setAttribute('role', 'tabpanel'); part.setAttribute('aria-label', part.dataset.tab);
    tab.addEventListener('click', () => choose(index));
    tab.addEventListener('keydown', (event) => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!step) return;
      const next = (index + step + parts.length) % parts.length;
      event.preventDefault(); choose(next); list.children[next].focus();
    });
  });
  group.prepend(bar); group.classList.add('tabbed');
  choose(0);
}

// The vertical axis from where the data begins, or from zero.
const moved = new Map();
const rescale = (svg, zero) => {
  const both = JSON.parse(svg.dataset.zero), {start, end} = both, [now, next] = both.scales;
  const used = zero ? next : now;
  const over = (y) => {
    const value = now.low + (y - start) / (end - start) * (now.high - now.low);
    return start + (value - used.low) / (used.high - used.low) * (end - start);
  };
  if (!moved.has(svg)) {
    const names = ['d', 'cy', 'y1', 'y2', 'y', 'height'];
    moved.set(svg, [...svg.querySelectorAll('.marks *')].map((node) =>
      [node, Object.fromEntries(names.filter((name) => node.hasAttribute(name)).map((name) => [name, node.getAttribute(name)]))]));
  }
  const path = (d) => d.replace(/([MLV])([^MLHVZ]*)/g, (_, letter, numbers) => {
    const found = numbers.trim().split(/[ ,]+/).map(Number);
    found[found.length - 1] = over(found[found.length - 1]).toFixed(1);
    return letter + found.join(' ');
  });
  for (const [node, was] of moved.get(svg)) {
    const dot = node.parentNode.querySelector(':scope > circle'), beside = node.matches('.word, .lead');
    const shift = beside && dot ? over(Number(moved.get(svg).find(([one]) => one === dot)[1].cy)) - Number(moved.get(svg).find(([one]) => one === dot)[1].cy) : 0;
    for (const [name, value] of Object.entries(was)) {
      const y = Number(value);
      node.setAttribute(name, !zero ? value : name === 'd' ? path(value) : beside ? (y + shift).toFixed(1)
        : name === 'height' ? (over(Number(was.y) + y) - over(Number(was.y))).toFixed(1) : over(y).toFixed(1));
    }
  }
  const levels = svg.querySelector('.levels'), line = levels.querySelector('line'), words = levels.querySelector('text');
  levels.replaceChildren(...used.ticks.flatMap(([value, label]) => {
    const level = (start + (value - used.low) / (used.high - used.low) * (end - start)).toFixed(1);
    const rule = line.cloneNode(), text = words.cloneNode();
    rule.setAttribute('y1', level); rule.setAttribute('y2', level); text.setAttribute('y', level);
    text.textContent = label;
    return [rule, text];
  }));
  const chart = charts.get(svg);
  if (chart) { chart.y.low = used.low; chart.y.high = used.high; }
  svg.querySelector('.cursor').replaceChildren();
};
const groups = new Set([...document.querySelectorAll('svg[data-zero]')].map((svg) => outermost(svg, '[data-tabs], .charts')));
for (const group of groups) {
  if (!group) continue;
  const own = group.matches('[data-tabs]') ? group.firstElementChild : document.createElement('div');
  if (!own.parentNode) { own.className = 'bar'; group.before(own); }
  const zero = button('from zero', own, 'switch');
  zero.setAttribute('aria-pressed', 'false');
  zero.title = 'Vertical axes begin at zero';
  zero.addEventListener('click', () => {
    const on = zero.getAttribute('aria-pressed') !== 'true';
    zero.setAttribute('aria-pressed', String(on));
    for (const svg of group.querySelectorAll('svg[data-zero]')) rescale(svg, on);
  });
}
