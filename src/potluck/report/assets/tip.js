// The box at the pointer, or beside what has the focus. Text goes in by textContent only: a name may look like markup.
const tip = document.createElement('div');
tip.className = 'tip'; tip.hidden = true; tip.setAttribute('role', 'status'); document.body.append(tip);
const make = (name, text, into, kind) => {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  into.append(made);
  return made;
};
const button = (text, into, kind) => {
  const made = make('button', text, into, kind);
  made.type = 'button';
  return made;
};
let byKeyboard = false;
const show = (place) => {
  tip.hidden = false; byKeyboard = !place.pointerType;
  const box = tip.getBoundingClientRect(), left = place.clientX + 14;
  tip.style.left = Math.max(4, left + box.width > innerWidth - 4 ? place.clientX - box.width - 14 : left) + 'px';
  tip.style.top = Math.max(4, Math.min(innerHeight - box.height - 4, place.clientY + 14)) + 'px';
};
const say = (words, place) => { tip.replaceChildren(); make('div', words, tip); show(place); };
const hide = () => { tip.hidden = true; };
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2};
};
// A finger that is lifted leaves the element too, but then the words should stay.
const left = (event) => { if (event.pointerType !== 'touch') hide(); };
document.addEventListener('pointerover', (event) => {
  const told = event.target.closest('[data-tip]');
  if (told) say(told.dataset.tip, event);
  else if (!event.target.closest('svg[data-chart],svg[data-strip],svg[data-presence]')) hide();
});
document.addEventListener('focusin', (event) => {
  if (!event.target.matches(':focus-visible')) return;  // a finger or a mouse has shown its words already
  const told = event.target.closest('[data-tip]');
  if (told) say(told.dataset.tip, middle(told)); else hide();
});
document.addEventListener('focusout', () => { if (byKeyboard) hide(); });
document.addEventListener('keydown', (event) => { if (event.key === 'Escape') hide(); });
