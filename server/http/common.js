const PHASES = ['receive', 'queue', 'plan', 'h2d', 'kernel', 'd2h', 'rest'];
const $ = (id) => document.getElementById(id);

function scaled(value, step, units) {
  let i = 0;
  while (i + 1 < units.length && value >= step * .9995) { value /= step; i++; }
  return (i || value % 1 ? value.toPrecision(value >= 100 ? 4 : 3).replace(/^(\d{4})\..*/, '$1') : value) + ' ' + units[i];
}

const bytes = (value) => Number.isFinite(value) ? scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']) : '–';

function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 1e-6) return '0';
  const [factor, unit] = seconds < .9995e-3 ? [1e6, 'µs'] : seconds < .9995 ? [1e3, 'ms'] : [1, 's'];
  return Number((seconds * factor).toPrecision(seconds * factor < 10 ? 2 : 3)) + ' ' + unit;
}

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function heading(text, className = '', scope = 'row') {
  const made = element('th', className, text);
  made.scope = scope;
  return made;
}

function reasonOf(answer) {
  try { return JSON.parse(answer.text).error; } catch { return `HTTP ${answer.code}`; }
}
