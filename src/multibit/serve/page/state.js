// What is shown, kept in the address of the page: reload, back and a shared link give the same view.

const DEFAULTS = { view: "search", q: "", id: "", code: "", source: "", modality: "", bits: 0, compare: 0, relaxed: false, count: 24, where: {} };

export const state = { ...DEFAULTS };

export function read() {
  const given = new URLSearchParams(location.search);
  Object.assign(state, structuredClone(DEFAULTS));
  for (const name of ["view", "q", "id", "code", "source", "modality"]) state[name] = given.get(name) || DEFAULTS[name];
  for (const name of ["bits", "compare", "count"]) state[name] = Number.parseInt(given.get(name), 10) || DEFAULTS[name];
  state.relaxed = given.get("relaxed") === "1";
  for (const [name, value] of given) {
    if (name.startsWith("is.")) (state.where[name.slice(3)] ??= []).push(value);
  }
}

function address(usual) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name === "where" || !value || value === DEFAULTS[name] || value === usual[name]) continue;
    given.set(name, value === true ? "1" : value);
  }
  for (const [name, values] of Object.entries(state.where)) for (const value of values) given.append(`is.${name}`, value);
  const text = given.toString();
  return text ? `?${text}` : "/";
}

/** Change the view. A step of its own in the history, unless `replace`: a slider would fill it. */
export function change(changes, { replace = false, usual = {} } = {}) {
  Object.assign(state, changes);
  history[replace ? "replaceState" : "pushState"](null, "", address(usual));
}
