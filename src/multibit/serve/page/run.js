// The second view: what a nested code is, what this run's code costs and finds, and what its teacher thinks.

import { get } from "./api.js";
import { bytes, h, number, plural } from "./dom.js";

const DIRECTIONS = { i2t: "image to text", t2i: "text to image" };
let made = false;

export async function showRun(view, info) {
  if (made) return;
  const found = await get("/v1/explain");
  made = true;
  view.replaceChildren(
    h("article", { class: "prose" },
      h("h1", {}, "How it works"),
      idea(info),
      price(info),
      accuracy(found),
      scales(found, info),
      await labels(found, info),
      health(found),
    ));
}

function idea(info) {
  const half = Math.round(info.bits / 4);
  return h("section", { "aria-labelledby": "idea" },
    h("h2", { id: "idea" }, "One code, every length"),
    h("p", {}, `A network turns each image and each text into ${plural(info.bits, "bit")}. Two things that belong together get codes in which few bits differ, so searching means counting different bits, which a processor does very fast.`),
    info.nested
      ? h("p", {}, `The code is nested: its first ${half} bits are a good code themselves, and so is every other prefix. Each item is stored once, and each search decides how many bits it reads: a few for speed, the whole code for precision. Without nesting, every length would need a model and a copy of all codes.`)
      : h("p", {}, "This run was trained by a method that makes a separate code for each length, so each length has an index of its own."),
    nestedPicture(info));
}

function nestedPicture(info) {
  const rows = info.lengths.map((bits) => {
    const bar = h("span", { class: "prefix", "aria-hidden": "true" }, h("i"));
    bar.firstChild.style.width = `${(100 * bits) / info.bits}%`;
    return h("li", {}, bar, h("span", {}, `${plural(bits, "bit")}, ${plural(bits / 8, "byte")}`));
  });
  return h("ul", { class: "prefixes" }, rows);
}

function price(info) {
  const [name, items] = Object.entries(info.indices)[0];
  const modality = name.startsWith("image") ? "image" : "text";
  const feature = info.feature_bytes[modality];
  const lengths = [...new Set([...info.lengths.filter((bits) => bits <= info.bits), info.bits])].sort((a, b) => a - b);
  const row = (title, each) => h("tr", {}, h("th", { scope: "row" }, title), [items, 1e6, 1e9].map((count) => h("td", {}, bytes(count * each))));
  return h("section", { "aria-labelledby": "price" },
    h("h2", { id: "price" }, "What a search reads"),
    table("Size of the codes that a search compares",
      h("tr", {}, h("th", { scope: "col" }, "Read per search"), [`${number(items)} here`, "1 million", "1 billion"].map((each) => h("th", { scope: "col" }, each))),
      [...lengths.map((bits) => row(plural(bits, "bit"), 2 * Math.ceil(bits / 16))), row(`features, ${number(feature / 4)} numbers`, feature)]));
}

const table = (caption, head, rows) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, rows)));

const METRICS = { // by name: title, meaning
  "mAP": ["Mean average precision", "Mean average precision: 100 % if all related items come before all others, for queries that were not part of the training."],
  "R@10": ["Recall at 10", "Recall at 10: how often the text of an image, or the image of a text, is among the first ten, for queries that were not part of the training."],
};

function accuracy(found) {
  const section = h("section", { "aria-labelledby": "accuracy" }, h("h2", { id: "accuracy" }, "How much is found at each length"));
  if (!found.accuracy.length) {
    section.append(h("p", {}, found.missing.accuracy));
    return section;
  }
  section.append(h("p", {}, METRICS[found.accuracy[0].metric][1]));
  for (const each of found.accuracy) section.append(protocol(each));
  return section;
}

function protocol(each) {
  const lengths = Object.keys(Object.values(each.means)[0]).map(Number).sort((a, b) => a - b);
  const percent = (value) => (100 * value).toFixed(1);
  const rows = Object.entries(each.means).map(([direction, means]) => h("tr", {}, h("th", { scope: "row" }, DIRECTIONS[direction]), lengths.map((bits) => h("td", {}, percent(means[bits])))));
  const floor = Object.entries(each.floors).map(([name, value]) => h("tr", { class: "faint" }, h("th", { scope: "row" }, `without learning: ${name === "popularity" ? "common labels first" : "random order"}`), lengths.map(() => h("td", {}, percent(value)))));
  return h("figure", {},
    h("figcaption", {}, `${plural(each.queries, "query", "queries")}, ${plural(each.database, "item")}: ${each.protocol}`),
    chart(each, lengths),
    table(`${METRICS[each.metric][0]}, ${each.protocol}`, h("tr", {}, h("th", { scope: "col" }, "in percent"), lengths.map((bits) => h("th", { scope: "col" }, plural(bits, "bit")))), [...rows, ...floor]));
}

function chart(each, lengths) {
  const [width, height, left, bottom, top] = [520, 190, 34, 26, 12];
  const best = Math.max(...Object.values(each.means).flatMap((means) => Object.values(means)));
  const most = Math.ceil(best * 10) / 10;
  const x = (bits) => left + 20 + ((width - left - 130) * Math.log2(bits / lengths[0])) / Math.max(Math.log2(lengths.at(-1) / lengths[0]), 1);
  const y = (value) => top + (height - top - bottom) * (1 - value / most);
  const grid = Array.from({ length: Math.round(most * 10) / 2 + 1 }, (_, step) => step * 0.2).filter((value) => value <= most + 1e-9);
  const ends = Object.entries(each.means).map(([direction, means]) => [direction, y(means[lengths.at(-1)])]).sort((a, b) => a[1] - b[1]);
  if (ends.length === 2 && ends[1][1] - ends[0][1] < 15) { const middle = (ends[0][1] + ends[1][1]) / 2; ends[0][1] = middle - 7.5; ends[1][1] = middle + 7.5; }
  return h("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `${METRICS[each.metric][0]} by code length; the numbers are in the table below` },
    grid.map((value) => [h("line", { class: "grid", x1: left, x2: width - 100, y1: y(value), y2: y(value) }), h("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, `${Math.round(100 * value)}`)]).flat(),
    lengths.map((bits) => h("text", { x: x(bits), y: height - 8, "text-anchor": "middle" }, String(bits))),
    Object.entries(each.floors).map(([, value]) => h("line", { class: "floor", x1: left, x2: width - 100, y1: y(value), y2: y(value) })),
    Object.entries(each.means).map(([direction, means]) => h("g", { class: `line ${direction}` },
      h("polyline", { points: lengths.map((bits) => `${x(bits)},${y(means[bits])}`).join(" ") }),
      lengths.map((bits) => h("circle", { cx: x(bits), cy: y(means[bits]), r: 3.5 })))),
    ends.map(([direction, place]) => h("text", { class: direction, x: x(lengths.at(-1)) + 10, y: place + 4 }, DIRECTIONS[direction])));
}

function scales(found, info) {
  if (!found.scales.length) return null;
  const bar = h("div", { class: "budget", role: "img", "aria-label": found.scales.map((scale, place) => `scale ${place + 1}: ${plural(scale.bits, "bit")}`).join(", ") });
  found.scales.forEach((scale, place) => {
    const part = h("i", { class: `scale-${Math.min(place, 5)}` });
    part.style.flexGrow = scale.bits;
    bar.append(part);
  });
  return h("section", { "aria-labelledby": "scales" },
    h("h2", { id: "scales" }, "Where the bits go"),
    h("p", {}, `The training compares labels at ${plural(found.scales.length, "scale")}: the first knows only labels that occur together often, the later ones also labels that are connected through others. The ${info.bits} bits are divided among the scales by their weight.`),
    bar,
    table("Bits of each scale",
      h("tr", {}, ["Scale", "Diffusion time", "Weight", "Bits"].map((each) => h("th", { scope: "col" }, each))),
      found.scales.map((scale, place) => h("tr", {},
        h("th", { scope: "row" }, h("span", { class: `dot scale-${Math.min(place, 5)}`, "aria-hidden": "true" }), `${place + 1}${place === 0 ? ", local" : place === found.scales.length - 1 ? ", long range" : ""}`),
        h("td", {}, scale.tau.toFixed(1)), h("td", {}, scale.rho.toPrecision(2)), h("td", {}, String(scale.bits))))));
}

async function labels(found, info) {
  if (!found.has_teacher || !info.labels.length) {
    if (!found.missing.teacher) return null;
    return h("section", { "aria-labelledby": "related" }, h("h2", { id: "related" }, "What the teacher considers related"), h("p", {}, found.missing.teacher));
  }
  const list = h("div", { "aria-live": "polite" });
  const choice = h("select", { id: "label" }, info.labels.map((label) => h("option", {}, label)));
  const wanted = ["bird", "dog", "flower", "food", "animal"].find((label) => info.labels.includes(label));
  if (wanted) choice.value = wanted;
  const show = async () => {
    try {
      list.replaceChildren(neighbourTable(await get(`/v1/labels/${encodeURIComponent(choice.value)}/neighbours?k=10`), choice));
    } catch (error) {
      list.replaceChildren(h("p", { class: "message" }, error.message));
    }
  };
  choice.addEventListener("change", show);
  await show();
  return h("section", { "aria-labelledby": "related" },
    h("h2", { id: "related" }, "What the teacher considers related"),
    h("p", {}, "Labels are related if they occur on the same items, or through others. The codes learn this order. A filled cell means closely related at that scale."),
    h("p", {}, h("label", { for: "label" }, "Label "), choice),
    list);
}

function neighbourTable(found, choice) {
  if (!found.neighbours.length) return h("p", {}, `"${found.label}" is related to no other label: it always occurs alone.`);
  const count = found.neighbours[0].scales.length;
  const cell = (value) => {
    const mark = h("i", { class: "heat", "aria-hidden": "true" });
    mark.style.opacity = String(Math.max(0, Math.min(1, value)));
    return h("td", { class: "heat-cell" }, mark, h("span", {}, value.toFixed(2)));
  };
  const pick = (label) => () => { choice.value = label; choice.dispatchEvent(new Event("change")); choice.focus(); };
  return h("div", {},
    h("p", { class: "faint" }, `"${found.label}" is on ${plural(found.items, "training item")}.`),
    table(`Labels related to ${found.label}`,
      h("tr", {}, h("th", { scope: "col" }, "Related label"), h("th", { scope: "col" }, "In all"), Array.from({ length: count }, (_, place) => h("th", { scope: "col" }, `Scale ${place + 1}`))),
      found.neighbours.map((each) => h("tr", {}, h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: pick(each.label) }, each.label)), cell(each.score), each.scales.map(cell)))));
}

function health(found) {
  return h("section", { "aria-labelledby": "health" },
    h("h2", { id: "health" }, "Health of the codes"),
    found.warnings.length
      ? h("ul", { class: "warnings" }, found.warnings.map((each) => h("li", {}, each)))
      : h("p", { class: "good" }, "No warnings: no bit is constant, and enough codes differ at every length."));
}
