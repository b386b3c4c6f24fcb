// Hits as cards. Cards are kept while the length changes, so that items move instead of flickering.

import { showImage } from "./api.js";
import { h, plural } from "./dom.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** A list of hits that is updated in place. `moreLikeThis(hit)` is called by a button of each card. */
export class Cards {
  constructor(moreLikeThis) {
    this.list = h("ol", { class: "cards" });
    this.moreLikeThis = moreLikeThis;
    this.known = new Map();
  }

  /** Show hits; `moves` tells for each id where it is in another list: a number of places, or "only here". */
  show(answer, moves = null) {
    const before = new Map([...this.list.children].map((card) => [card, card.getBoundingClientRect()]));
    const cards = answer.hits.map((hit) => this.card(hit, answer, moves));
    this.list.replaceChildren(...cards);
    this.known = new Map(answer.hits.map((hit, place) => [String(hit.id), cards[place]]));
    if (!calm.matches) for (const card of cards) glide(card, before.get(card));
  }

  card(hit, answer, moves) {
    const card = this.known.get(String(hit.id)) || this.create(hit, answer);
    card.replaceChild(caption(hit, answer, moves), card.querySelector(".caption"));
    return card;
  }

  create(hit, answer) {
    const text = hit.fields.text || String(hit.id);
    const labels = Array.isArray(hit.fields.labels) ? hit.fields.labels : [];
    return h("li", { class: `card of-${answer.modality}`, "data-id": hit.id },
      hit.image ? picture(hit) : null,
      h("div", { class: "caption" }),
      h("p", { class: "text", title: text }, text),
      labels.length > 0 && h("ul", { class: "labels", "aria-label": "Labels" }, labels.map((label) => h("li", {}, label))),
      h("button", { type: "button", class: "more", "aria-label": `More like this: ${text.slice(0, 60)}`, onclick: () => this.moreLikeThis(hit) }, "More like this"),
    );
  }
}

function picture(hit) { // its alternative text would repeat the text of the card
  const image = h("img", { alt: "", loading: "lazy", decoding: "async", width: 160, height: 160 });
  const frame = h("div", { class: "picture" }, image);
  image.addEventListener("error", () => frame.replaceChildren(h("span", {}, "image not available")), { once: true });
  showImage(image, hit.image);
  return frame;
}

function caption(hit, answer, moves) {
  const near = hit.distance === null ? null : 1 - hit.distance / answer.bits;
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("i"));
  const best = answer.hits[0].score;
  bar.firstChild.style.width = `${100 * Math.max(0, near ?? (best > 0 ? hit.score / best : 0))}%`;
  const said = hit.distance === null ? `score ${hit.score.toFixed(2)}` : hit.distance === 0 ? "no bit differs" : `${plural(hit.distance, "bit")} differ${hit.distance === 1 ? "s" : ""}`;
  return h("div", { class: "caption" },
    h("span", { class: "rank" }, String(hit.rank)), bar, h("span", { class: "distance" }, said),
    moves && move(moves.get(String(hit.id)), hit.rank));
}

function move(other, rank) {
  if (other === undefined) return h("span", { class: "move new" }, "only here");
  if (other === rank) return null;
  const up = rank < other;
  return h("span", { class: `move ${up ? "up" : "down"}`, title: `rank ${other} at the other length` }, `${up ? "▲" : "▼"} ${Math.abs(other - rank)}`);
}

function glide(card, before) {
  if (!before) {
    card.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 160 });
    return;
  }
  const now = card.getBoundingClientRect();
  const [x, y] = [before.left - now.left, before.top - now.top];
  if (x || y) card.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: 220, easing: "ease-out" });
}

/** Rank of each hit by id. */
export const ranks = (answer) => new Map(answer.hits.map((hit) => [String(hit.id), hit.rank]));
