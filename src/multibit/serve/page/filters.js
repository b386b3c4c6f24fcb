// Filter chips: the common values of each field, with the number of items that have them.

import { h, number } from "./dom.js";

const FEW = 12;
const opened = new Set();

/** Fill the container. `chosen`: field -> values; `toggle(field, value)` is called by a chip. */
export function showFilters(container, fields, chosen, toggle, clear) {
  const groups = Object.entries(fields).filter(([, field]) => field.values && field.values.length > 1);
  const focused = document.activeElement?.dataset?.chip;
  container.replaceChildren(...groups.map(([name, field]) => group(name, field, chosen[name] || [], toggle, () => showFilters(container, fields, chosen, toggle, clear))));
  if (Object.keys(chosen).length) container.append(h("button", { type: "button", class: "chip clear", onclick: clear }, "Clear filters"));
  if (focused) [...container.querySelectorAll("[data-chip]")].find((chip) => chip.dataset.chip === focused)?.focus();
}

function group(name, field, chosen, toggle, again) {
  const all = field.values.map(([value, count]) => [String(value), count]);
  const shown = opened.has(name) ? all : all.filter(([value], place) => place < FEW || chosen.includes(value));
  const chips = shown.map(([value, count]) =>
    h("button", { type: "button", class: "chip", "data-chip": `${name}=${value}`, "aria-pressed": String(chosen.includes(value)), onclick: () => toggle(name, value) },
      value, h("span", { class: "count" }, number(count))));
  const rest = all.length - shown.length;
  const more = () => { if (opened.has(name)) opened.delete(name); else opened.add(name); again(); };
  const button = (rest > 0 || opened.has(name)) && all.length > FEW && h("button", { type: "button", class: "chip plain", "aria-expanded": String(opened.has(name)), onclick: more }, rest > 0 ? `${rest} more` : "fewer");
  return h("div", { class: "field", role: "group", "aria-label": name }, h("span", { class: "field-name", "aria-hidden": "true" }, name), chips, button);
}

/** The filter of the search: any of the values of a field, all fields. */
export function asWhere(chosen, fields) {
  const where = {};
  for (const [name, values] of Object.entries(chosen)) {
    if (!fields[name]) continue;
    const kind = fields[name].kind;
    where[name] = { $in: values.map((value) => kind === "integer" ? Number(value) : kind === "boolean" ? value === "true" : value) };
  }
  return Object.keys(where).length ? where : undefined;
}
