// What a server sends is checked where it comes in, against a description of it. A description is the name of a kind,
// an object of them by field (`name?` may be missing or null; fields without description are let be), or [one] for a
// list of such.
const isObject = v => typeof v === 'object' && v !== null && !Array.isArray(v);
const isCount = v => Number.isSafeInteger(v) && v >= 0;

const KINDS = {
  text: v => typeof v === 'string',
  number: v => Number.isFinite(v),
  boolean: v => typeof v === 'boolean',
  list: Array.isArray,
  object: isObject,
  count: isCount,
  limit: v => isCount(v) && v > 0,
  status: v => Number.isInteger(v) && v >= 200 && v <= 599, // what a Response can have
  failure: v => Number.isInteger(v) && v >= 400 && v <= 599,
  id: v => typeof v === 'string' || isCount(v),
};

// In a word or two, and without its content: that may be long, deep, or a secret.
export function kindOf(value) {
  if (value === undefined) return 'missing';
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'string') return 'a text';
  if (typeof value === 'object') return 'an object';
  return String(value);
}

// In what it differs from its description; '' when it does not.
export function misfit(value, want, name = 'it') {
  if (typeof want === 'string') return KINDS[want](value) ? '' : `${name} is ${kindOf(value)}`;
  if (Array.isArray(want)) return misfit(value, 'list', name) || firstMisfit(value, v => misfit(v, want[0], `an entry of ${name}`));
  if (!isObject(value)) return `${name} is ${kindOf(value)}`;
  return firstMisfit(Object.entries(want), ([field, kind]) => {
    const key = field.replace(/\?$/, '');
    if (key !== field && (value[key] === undefined || value[key] === null)) return '';
    return misfit(value[key], kind, `"${key}"`);
  });
}

function firstMisfit(all, check) {
  for (const one of all) {
    const wrong = check(one);
    if (wrong) return wrong;
  }
  return '';
}

// The body of an answer: undefined where there is none, the text itself where it is not JSON.
export function parse(text) {
  if (text === '') return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
