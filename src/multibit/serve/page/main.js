// The search view: what is typed, dropped or chosen becomes a search, and its answer is shown.

import { encodeImage, get, post } from "./api.js";
import { Cards, ranks } from "./cards.js";
import { $, bytes, duration, h, number, plural, save } from "./dom.js";
import { asWhere, showFilters } from "./filters.js";
import { showRun } from "./run.js";
import { change, read, state } from "./state.js";

let info = null;
let shown = null; // the answers on the page: [answer] or [answer, answer of the other length]
let dropped = null; // the image of the query: {code, vector, url}
const cards = [new Cards(moreLikeThis), new Cards(moreLikeThis)];

// Search, the latest one wins: while one runs, only the newest wish is kept

let running = false;
let wish = false;

async function search() {
  wish = true;
  if (running) return;
  running = true;
  try {
    while (wish) {
      wish = false;
      await answer();
    }
  } finally {
    running = false;
  }
}

function query() {
  if (state.q) return { text: state.q };
  if (state.id) return { id: state.id, source: state.source || "image" };
  if (!state.code) return null;
  if (state.relaxed && dropped?.code === state.code) return { vector: dropped.vector, source: state.source };
  return { code: state.code, source: state.source || "image" };
}

async function answer() {
  const asked = query();
  let note = "";
  $("results").setAttribute("aria-busy", "true");
  try {
    if (asked) {
      const modality = state.modality;
      const rest = { modality, k: state.count, where: asWhere(state.where, info.fields[modality] || {}), relaxed: state.relaxed };
      const lengths = state.compare ? [state.bits, state.compare] : [state.bits];
      const answers = await Promise.all(lengths.map((bits) => post("/v1/search", { ...asked, ...rest, bits })));
      if (!wish) showAnswers(answers);
      note = answers[0].note;
    } else {
      await showStart();
    }
    tell(note);
  } catch (error) {
    tell(error.message);
  } finally {
    $("results").setAttribute("aria-busy", "false");
  }
}

function showAnswers(answers) {
  shown = answers;
  const [first, second] = answers;
  const moves = second ? [ranks(second), ranks(first)] : [null, null];
  answers.forEach((each, place) => cards[place].show(each, moves[place]));
  const columns = answers.map((each, place) =>
    second ? h("section", { class: "column", "aria-label": `${each.bits} bits` }, h("h3", {}, plural(each.bits, "bit")), h("p", { class: "cost" }, cost(each)), cards[place].list) : cards[place].list);
  const layout = $("results");
  layout.className = second ? "results two" : "results";
  layout.replaceChildren(...columns);
  $("status").textContent = summary(answers);
  $("save").hidden = first.hits.length === 0;
  $("cost").textContent = cost(first);
  showStrip(first.code);
  if (first.hits.length === 0) layout.replaceChildren(h("p", { class: "empty" }, Object.keys(state.where).length ? "Nothing passes these filters." : "Nothing found."));
}

function cost(answer) {
  const features = answer.items * (info.feature_bytes[answer.modality] || 0);
  const less = answer.bytes_read ? Math.round(features / answer.bytes_read) : 0;
  return `${bytes(answer.bytes_read)} read in ${duration(answer.seconds)}${less > 1 ? `, ${number(less)} times less than the features` : ""}`;
}

function summary([first, second]) {
  if (!first.hits.length) return "No results";
  const many = `The nearest ${number(first.hits.length)} of ${plural(first.items, first.modality)}`;
  if (second) {
    const [here, there] = [ranks(first), ranks(second)];
    const kept = [...here.keys()].filter((id) => there.has(id)).length;
    return `${many}; ${first.bits} and ${second.bits} bits agree on ${kept} of ${here.size}`;
  }
  if (state.relaxed) return `${many}, by the real values of the query`;
  const distances = new Set(first.hits.map((hit) => hit.distance)).size;
  if (distances > 1 || first.hits.length < 2) return `${many}, at ${plural(distances, "different distance")}`;
  return `${many}, all at the same distance${first.bits < info.bits ? ": more bits would tell them apart" : ""}`;
}

async function showStart() {
  shown = null;
  const modality = state.modality;
  const total = info.indices[modality] ?? 0;
  const found = await get(`/v1/items?modality=${modality}&limit=${Math.min(state.count, 24)}`);
  const hits = found.items.map((item, place) => ({ ...item, rank: place + 1, distance: null, score: 0 }));
  cards[0].show({ hits, modality, bits: state.bits });
  $("results").className = "results browse";
  $("results").replaceChildren(cards[0].list);
  $("status").textContent = `Some of ${plural(found.total, modality)}. Search, or ask for more like one of them.`;
  $("save").hidden = true;
  const size = total * 2 * Math.ceil(state.bits / 16);
  $("cost").textContent = `${plural(state.bits / 8, "byte")} per ${modality}, ${bytes(size)} in all`;
  showStrip("");
}

function tell(problem) {
  $("message").hidden = !problem;
  $("message").textContent = problem;
}

// The code of the query under the slider

function showStrip(code) {
  const strip = $("strip");
  const known = info.nested && code.length * 4 >= info.bits;
  const bits = [...code].flatMap((digit) => [...Number.parseInt(digit, 16).toString(2).padStart(4, "0")]);
  if (strip.childElementCount !== info.bits) strip.replaceChildren(...Array.from({ length: info.bits }, () => h("i")));
  [...strip.children].forEach((cell, place) => {
    cell.className = `${known && bits[place] === "1" ? "one" : ""} ${place < state.bits ? "used" : ""} ${known ? "" : "unknown"}`;
  });
  strip.setAttribute("aria-label", known ? `The code of the query: ${state.bits} of ${info.bits} bits are used` : `${state.bits} of ${info.bits} bits are used`);
}

// Controls

function showControls() {
  const { bits } = state;
  document.title = state.q ? `${state.q} - multibit search` : "multibit search";
  $("text").value = state.q;
  $("bits").value = bits;
  $("bits").setAttribute("aria-valuetext", plural(bits, "bit"));
  $("bits-value").textContent = plural(bits, "bit");
  for (const radio of document.getElementsByName("modality")) {
    radio.checked = radio.value === state.modality;
    radio.disabled = !(radio.value in info.fields);
  }
  $("compare").value = state.compare || "";
  $("relaxed").checked = state.relaxed;
  $("count").value = String(state.count);
  showChip();
  showFilters($("filters"), info.fields[state.modality] || {}, state.where, toggleFilter, () => go({ where: {} }));
}

function showChip() {
  const chip = $("query-chip");
  chip.hidden = !(state.id || state.code);
  chip.replaceChildren();
  if (chip.hidden) return;
  const own = dropped?.code === state.code && state.code ? dropped : null;
  if (own) chip.append(h("img", { src: own.url, alt: "", width: 28, height: 28 }));
  const said = state.id ? `like ${state.id.split("/").pop()}` : own ? "your image" : `an image, as ${state.code.length / 2} bytes`;
  chip.append(h("span", {}, said), h("button", { type: "button", "aria-label": "Remove the query", onclick: () => go({ id: "", code: "", source: "" }) }, "×"));
}

function toggleFilter(field, value) {
  const values = new Set(state.where[field] || []);
  if (!values.delete(value)) values.add(value);
  const where = { ...state.where, [field]: [...values] };
  if (!values.size) delete where[field];
  go({ where });
}

function moreLikeThis(hit) {
  go({ q: "", id: String(hit.id), code: "", source: state.modality });
  scrollTo({ top: 0, behavior: "instant" });
  $("results-heading").focus({ preventScroll: true });
}

const usual = () => ({ bits: info.bits, modality: info.start });

function go(changes, { replace = false } = {}) {
  change(changes, { replace, usual: usual() });
  complete();
  showControls();
  showStrip(shown ? shown[0].code : "");
  return search();
}

/** Fill what the address leaves out, and mend what does not fit this run. */
function complete() {
  const least = Math.min(8, info.bits);
  state.bits = Math.min(Math.max(state.bits || info.bits, least), info.bits);
  if (!(state.modality in info.fields)) state.modality = info.start;
  if (![...$("compare").options].some((option) => option.value === String(state.compare))) state.compare = 0;
  if (![...$("count").options].some((option) => option.value === String(state.count))) state.count = 24;
}

async function searchByImage(file) {
  if (!file) return;
  if (!file.type.startsWith("image/")) return tell(`${file.name} is not an image.`);
  if (file.size * 1.34 > info.limits.max_body) return tell(`The image is larger than ${bytes(info.limits.max_body / 1.34)}.`);
  $("status").textContent = "Reading the image";
  try {
    const { code, vector } = await encodeImage(file);
    if (dropped) URL.revokeObjectURL(dropped.url);
    dropped = { code, vector, url: URL.createObjectURL(file) };
    await go({ q: "", id: "", code, source: "image" });
  } catch (error) {
    tell(error.message);
  }
}

// JSON and CSV

function saveJson() {
  save("results.json", "application/json", JSON.stringify(shown.length === 1 ? shown[0] : shown, null, 1));
}

function saveCsv() {
  const names = [...new Set(shown.flatMap((each) => each.hits.flatMap((hit) => Object.keys(hit.fields))))];
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : Array.isArray(value) ? value.join("|") : typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // a spreadsheet would run it
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const rows = [["bits", "rank", "id", "distance", "score", ...names]];
  for (const each of shown) for (const hit of each.hits) rows.push([each.bits, hit.rank, hit.id, hit.distance, hit.score, ...names.map((name) => hit.fields[name])]);
  save("results.csv", "text/csv", rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n");
}

// Start

function showView() {
  $("search-view").hidden = state.view === "run";
  $("run-view").hidden = state.view !== "run";
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (state.view !== "run") return search();
  document.title = "How it works - multibit";
  return showRun($("run-view"), info).catch((error) => $("run-view").replaceChildren(h("p", { class: "message" }, error.message)));
}

function fill() {
  const sizes = Object.entries(info.indices).map(([name, size]) => plural(size, name));
  $("served").textContent = `${sizes.join(", ")}; ${info.bits} bits each`;
  $("bits").max = info.bits;
  $("bits").min = Math.min(8, info.bits);
  const start = Number($("bits").min) / info.bits; // the handle is exactly where the code is cut; it is 18 pixels wide
  $("bits").style.marginLeft = `calc(${100 * start}% - 9px)`;
  $("bits").style.width = `calc(${100 * (1 - start)}% + 18px)`;
  const marks = [8, 16, 32, 64, 96, 128, 256, 512].filter((bits) => bits <= info.bits && bits >= Number($("bits").min));
  if (!marks.includes(info.bits)) marks.push(info.bits);
  $("bits-ticks").replaceChildren(...marks.map((bits) => h("option", { value: bits })));
  $("ticks").replaceChildren(...marks.map((bits) => {
    const mark = h("span", {}, String(bits));
    mark.style.left = `${(100 * bits) / info.bits}%`;
    return mark;
  }));
  $("compare").append(...marks.map((bits) => h("option", { value: bits }, plural(bits, "bit"))));
  $("lead").textContent = info.nested
    ? `Every item is stored once, as ${info.bits} bits, and its first bits are already a complete code. Drag the handle: reading fewer bits is faster, more bits tell more items apart.`
    : "This run stores a code for each length. Drag the handle to choose how many bits a search reads.";
  const canType = info.encodes.includes("text");
  $("text").disabled = !canType;
  $("file").disabled = !info.encodes.includes("image");
  $("file-label").hidden = $("file").disabled;
  const tries = common(info.fields[info.start] || {}).map((value) => h("button", { type: "button", class: "link", onclick: () => go({ q: value, id: "", code: "" }) }, value));
  $("hint").replaceChildren(...(canType ? ["Try ", ...tries.flatMap((each, place) => (place ? [", ", each] : [each])), info.encodes.includes("image") ? ", or drop or paste an image." : "."]
    : ["This run was trained on ready-made features, so texts and images cannot be encoded here. Start from an item."]));
}

/** A few values to try: spread over the common ones, so that they differ. */
function common(fields) {
  const values = (fields.labels?.values || []).map(([value]) => String(value)).filter((value) => !value.includes("icon"));
  return [7, 2, 12, 19, 26].map((place) => values[place] ?? null).filter(Boolean).slice(0, 4);
}

function listen() {
  $("query-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("text").value.trim();
    if (text) go({ q: text, id: "", code: "", source: "" });
    else if (state.q) go({ q: "" });
  });
  $("bits").addEventListener("input", () => go({ bits: Number($("bits").value) }, { replace: true }));
  $("compare").addEventListener("change", () => go({ compare: Number($("compare").value) || 0 }));
  $("relaxed").addEventListener("change", () => go({ relaxed: $("relaxed").checked }));
  $("count").addEventListener("change", () => go({ count: Number($("count").value) }));
  $("modality").addEventListener("change", (event) => go({ modality: event.target.value, where: {} }));
  $("file").addEventListener("change", () => { searchByImage($("file").files[0]); $("file").value = ""; });
  $("save-json").addEventListener("click", saveJson);
  $("save-csv").addEventListener("click", saveCsv);
  for (const link of document.querySelectorAll("[data-view]")) {
    link.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      const fresh = link.classList.contains("name") ? { q: "", id: "", code: "", where: {}, compare: 0, relaxed: false, bits: info.bits } : {};
      change({ view: link.dataset.view, ...fresh }, { usual: usual() });
      complete();
      showControls();
      showView();
    });
  }
  addEventListener("popstate", () => { read(); complete(); showControls(); showView(); });
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=range]):not([type=checkbox]):not([type=radio]), textarea, select, dialog");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); $("text").focus(); }
  });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files || [])].find((each) => each.type.startsWith("image/"));
    if (file && info.encodes.includes("image")) { event.preventDefault(); searchByImage(file); }
  });
  listenToDrops();
}

function listenToDrops() {
  let inside = 0;
  const hasFile = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  const show = (wanted) => { $("drop").hidden = !wanted; };
  addEventListener("dragenter", (event) => { if (hasFile(event)) { inside += 1; show(true); } });
  addEventListener("dragleave", () => { inside = Math.max(0, inside - 1); if (!inside) show(false); });
  addEventListener("dragover", (event) => { if (hasFile(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    inside = 0;
    show(false);
    if (info.encodes.includes("image")) searchByImage(event.dataTransfer.files[0]);
    else tell("This run cannot encode images.");
  });
}

async function start() {
  try {
    info = await get("/v1/info");
  } catch (error) {
    tell(error.message);
    return;
  }
  info.start = "image" in info.fields ? "image" : Object.keys(info.fields)[0];
  read();
  fill();
  complete();
  listen();
  showControls();
  await showView();
  document.documentElement.dataset.ready = "1";
}

start();
