// SPDX-License-Identifier: Apache-2.0
// Files that are attached to a question: text as it is, the text of a PDF (pdf.js, in a worker), pictures for models that see.
import {t} from "./words.js";

export const MAX_FILES = 20; // of one message
const MAX_TEXT = 2 << 20, MAX_BINARY = 32 << 20;
const MAX_SIDE = 2048, MAX_KEPT = 4 << 20; // a larger picture is drawn anew
const PDF_MS = 60000;
const PICTURE = /^data:image\/(png|jpeg);base64,[A-Za-z0-9+/]+=*$/;

export const isPicture = (url) => typeof url === "string" && PICTURE.test(url);

const reasons = () => ({
  encrypted: t("it is encrypted"), damaged: t("it is damaged"), large: t("it is too large"), slow: t("it takes too long"),
  empty: t("it has no text, only pictures of pages"), fonts: t("its fonts do not say which letters they draw"),
});

// The worker's answer to the file: {text, pages, read} or {reason}.
function readPdf(bytes) {
  return new Promise((done) => {
    const worker = new Worker(new URL("pdf.js", import.meta.url), {type: "module"});
    const end = (answer) => { clearTimeout(timer); worker.terminate(); done(answer); };
    const timer = setTimeout(() => end({reason: "slow"}), PDF_MS);
    worker.onmessage = (e) => end(e.data);
    worker.onerror = () => end({reason: "damaged"});
    worker.postMessage(bytes, [bytes]);
  });
}

const dataUrl = (blob) => new Promise((yes, no) => {
  const reader = new FileReader();
  reader.onload = () => yes(reader.result);
  reader.onerror = () => no(reader.error);
  reader.readAsDataURL(blob);
});

// Small PNG and JPEG as they are, others as a JPEG that is not larger than needed.
async function picture(file) {
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    throw new Error(t("{name} is not a picture that this browser can read.", {name: file.name}));
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(image.width, image.height));
  if (scale === 1 && file.size <= MAX_KEPT && /^image\/(png|jpeg)$/.test(file.type)) return dataUrl(file);
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(image.width * scale)), Math.max(1, Math.round(image.height * scale)));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "white"; // behind what is transparent
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return dataUrl(await canvas.convertToBlob({type: "image/jpeg", quality: 0.9}));
}

// {name, text} or {name, image: its data: URL}; with `note` where not all of it was taken. sees: the model takes pictures. Throws
// what is wrong.
export async function readFile(file, sees) {
  const {name} = file, isImage = /^image\/(?!svg)/.test(file.type), head = new Uint8Array(await file.slice(0, 1024).arrayBuffer());
  const isPdf = file.type === "application/pdf" || String.fromCharCode(...head).includes("%PDF-"), max = isImage || isPdf ? MAX_BINARY : MAX_TEXT;
  if (file.size > max) throw new Error(t("{name} is larger than {n} MiB.", {name, n: max >> 20}));
  if (isImage) {
    if (!sees) throw new Error(t("{name} is a picture, and this model takes text alone.", {name}));
    return {name, image: await picture(file)};
  }
  if (isPdf) {
    const {text, pages, read, reason} = await readPdf(await file.arrayBuffer());
    if (reason && reason !== "not pdf") throw new Error(t("The text of {name} could not be read: {why}.", {name, why: reasons()[reason] || reason}));
    if (!reason) return {name, text, ...(read < pages ? {note: t("The first {n} of {max} pages of {name} are attached.", {n: read, max: pages, name})} : {})};
  }
  let text = "\0";
  try {
    text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
  } catch { /* as said below */ }
  if (text.includes("\0")) throw new Error(t("{name} is not a text file in UTF-8.", {name}));
  return {name, text};
}

// What is sent as text for a message: its files come before its text, in fences that they do not contain.
export function whole(n) {
  const files = (n.files || []).filter((f) => !f.image).map((f) => {
    const longest = (f.text.match(/`{3,}/g) || []).reduce((a, b) => Math.max(a, b.length), 2);
    const fence = "`".repeat(longest + 1);
    return `${f.name}:\n${fence}\n${f.text}\n${fence}\n\n`;
  });
  return files.join("") + (n.content || "");
}

// The content of a message in OpenAI's form: a text, or the pictures and then the text.
export function contentOf(n) {
  const pictures = (n.files || []).filter((f) => f.image), text = whole(n);
  if (!pictures.length) return text;
  return [...pictures.map((f) => ({type: "image_url", image_url: {url: f.image}})), ...(text ? [{type: "text", text}] : [])];
}
