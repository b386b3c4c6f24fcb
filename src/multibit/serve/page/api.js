// The HTTP interface. Refusals become errors with the text that the server gave.

import { $ } from "./dom.js";

let token = sessionStorage.getItem("multibit-token") || "";

export class Refused extends Error {
  constructor(problem, status) {
    super(problem.detail || "The server did not answer as expected.");
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ detail: "The server cannot be reached. Is it still running?" }, 0);
  }
  if (response.status === 401) {
    await askForToken();
    return request(path, options);
  }
  if (!response.ok) throw new Refused(await response.json().catch(() => ({})), response.status);
  return response;
}

let asking = null;

function askForToken() {
  asking ??= new Promise((resolve) => {
    const dialog = $("token-dialog");
    dialog.addEventListener("close", () => {
      token = $("token").value;
      sessionStorage.setItem("multibit-token", token);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

export const get = async (path) => (await request(path)).json();

export async function post(path, body, signal) {
  const options = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal };
  return (await request(path, options)).json();
}

/** Show the image of an item; with a token an <img> cannot ask for it itself. */
export async function showImage(image, address) {
  const path = `${address}?width=320`;
  if (!token) {
    image.src = path;
    return;
  }
  try {
    image.src = URL.createObjectURL(await (await request(path)).blob());
  } catch {
    image.dispatchEvent(new Event("error"));
  }
}

/** The code of an image file: hexadecimal, and its real values. */
export async function encodeImage(file) {
  const content = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1] || "");
    reader.onerror = () => reject(new Refused({ detail: "The file cannot be read." }, 0));
    reader.readAsDataURL(file);
  });
  return (await post("/v1/encode", { images: [content], vectors: true })).images[0];
}
