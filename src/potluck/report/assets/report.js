// Insert text with textContent only: a client's name may look like markup.
(() => {
  const tip = document.createElement('div');
  tip.className = 'tip'; tip.hidden = true; document.body.append(tip);
  const make = (name, text, into) => {
    const made = document.createElement(name);
    made.textContent = text; into.append(made);
    return made;
  };
  const show = (event) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), left = event.clientX + 14;
    tip.style.left = Math.max(4, left + box.width > innerWidth - 4 ? event.clientX - box.width - 14 : left) + 'px';
    tip.style.top = Math.max(4, Math.min(innerHeight - box.height - 4, event.clientY + 14)) + 'px';
  };
  const write = (axis, value) => axis.kind === 'percent' ? (100 * value).toFixed(1) + ' %'
    : Number(value.toPrecision(axis.kind === 'whole' ? 9 : 4)).toLocaleString('en')
      + (axis.unit ? ' ' + axis.unit : '');
  const place = (axis, value) => axis.start + (value - axis.low) / (axis.high - axis.low) * (axis.end - axis.start);
  document.addEventListener('click', (event) => {
    const key = event.target.closest('.key');
    if (!key) return;
    const off = key.getAttribute('aria-pressed') === 'true';
    const scope = key.closest('[data-scope]') || key.closest('figure');
    for (const node of scope.querySelectorAll('[data-key="' + key.dataset.key + '"]')) {
      if (node.matches('.key')) node.setAttribute('aria-pressed', String(!off)); else node.classList.toggle('off', off);
    }
  });
  for (const svg of document.querySelectorAll('svg[data-chart]')) {
    const chart = JSON.parse(svg.dataset.chart), cursor = svg.querySelector('.cursor'), view = svg.viewBox.baseVal;
    const nearest = (line, at) => line.points.reduce((best, point) =>
      Math.abs(place(chart.x, point[0]) - at) < Math.abs(place(chart.x, best[0]) - at) ? point : best);
    svg.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * view.width;
      const hidden = (line) => svg.querySelector('.off[data-key="' + line.key + '"]');
      const seen = chart.lines.filter((line) => line.points.length && !hidden(line));
      if (!seen.length) return;
      const near = seen.map((line) => nearest(line, at));
      const far = (point) => Math.abs(place(chart.x, point[0]) - at);
      const lead = near.reduce((a, b) => far(b) < far(a) ? b : a);
      const across = place(chart.x, lead[0]);
      cursor.replaceChildren(); tip.replaceChildren();
      const draw = (name, values) => {
        const made = document.createElementNS(svg.namespaceURI, name);
        for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
        cursor.append(made);
      };
      draw('line', {x1: across, x2: across, y1: chart.y.start, y2: chart.y.end});
      make('div', chart.x.title + ' ' + write(chart.x, lead[0]), tip);
      seen.map((line, index) => [line, near[index]])
        .filter(([, point]) => Math.abs(place(chart.x, point[0]) - across) < 6)
        .sort((a, b) => b[1][1] - a[1][1]).forEach(([line, point]) => {
          const spot = {cx: place(chart.x, point[0]), cy: place(chart.y, point[1]), r: 3.6};
          draw('circle', {...spot, style: 'fill:' + line.colour});
          const row = make('div', '', tip);
          make('i', '', row).style.background = line.colour;
          make('span', line.label, row); make('b', write(chart.y, point[1]), row);
        });
      show(event);
    });
    svg.addEventListener('pointerleave', () => { cursor.replaceChildren(); tip.hidden = true; });
  }
  for (const svg of document.querySelectorAll('svg[data-strip]')) {
    const strip = JSON.parse(svg.dataset.strip), say = (value) => Number(value.toPrecision(4)).toLocaleString('en');
    const times = (told) => told === null ? 'unknown' : Array.isArray(told)
      ? say(told[0]) + ' times on average, ' + say(told[1]) + ' to ' + say(told[2])
      : say(told) + (told === 1 ? ' time' : ' times');
    svg.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect(), unit = (event.clientX - box.left) / box.width * strip.units;
      const cell = Math.max(0, Math.min(strip.cells.length - 1, Math.floor(unit / strip.size)));
      const first = cell * strip.size, last = Math.min(strip.units, first + strip.size) - 1;
      const name = first === last ? 'unit ' + say(first) : 'units ' + say(first) + ' to ' + say(last);
      tip.replaceChildren(); make('div', name + ': ' + times(strip.cells[cell]), tip); show(event);
    });
    svg.addEventListener('pointerleave', () => { tip.hidden = true; });
  }
  for (const svg of document.querySelectorAll('svg[data-presence]')) {
    const {rounds, size, cells} = JSON.parse(svg.dataset.presence);
    const states = JSON.parse(svg.closest('[data-states]').dataset.states), whole = (value) => value.toLocaleString('en');
    const told = (cell) => {
      if (size === 1) return (states.find(([letter]) => letter === cells[cell]) || ['', 'not joined'])[1];
      const known = states.map(([, words], index) => [cells[cell][index], words]).filter(([count]) => count);
      return known.map(([count, words]) => count + ' ' + words).join(', ') || 'not joined';
    };
    svg.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect(), at = Math.floor((event.clientX - box.left) / box.width * rounds / size);
      const cell = Math.max(0, Math.min(cells.length - 1, at)), first = cell * size + 1;
      const last = Math.min(rounds, first + size - 1);
      const name = first === last ? 'round ' + whole(first) : 'rounds ' + whole(first) + ' to ' + whole(last);
      tip.replaceChildren(); make('div', name + ': ' + told(cell), tip); show(event);
    });
    svg.addEventListener('pointerleave', () => { tip.hidden = true; });
  }
  document.addEventListener('pointerover', (event) => {
    const told = event.target.closest('[data-tip]');
    if (told) { tip.replaceChildren(); make('div', told.dataset.tip, tip); show(event); }
    else if (!event.target.closest('svg[data-chart],svg[data-strip],svg[data-presence]')) tip.hidden = true;
  });
})();
