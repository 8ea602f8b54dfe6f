// SPDX-License-Identifier: Apache-2.0
// Models that come from the hub and go again, of a server of several models: a dialog with a bar, and the button Delete.
import {$, number} from "./dom.js";
import {deleteModel, pullModel} from "./api.js";
import {modelOf} from "./settings.js";
import {t} from "./words.js";

let running = null; // aborts the pull that is under way

const gigabytes = (n) => number(n / 1e9, 2);

function show(line) {
  const measured = line.total > 0;
  $("pull-status").textContent = measured ? `${line.status} · ${t("{n} of {max} GB", {n: gigabytes(line.completed), max: gigabytes(line.total)})}` : line.status;
  $("pull-bar").hidden = false;
  if (measured) $("pull-bar").value = line.completed / line.total;
  else $("pull-bar").removeAttribute("value"); // it moves, without a number
}

function end(text) {
  running = null;
  $("pull-bar").hidden = true;
  $("pull-status").textContent = text;
  $("pull-go").disabled = $("pull-name").disabled = false;
}

// tell(text): an error, or "". changed(name): the server's models are others; NAME is to be chosen, "" none.
export function startPulls(tell, changed) {
  $("add").onclick = () => { end(""); $("pull").showModal(); };
  $("pull-close").onclick = () => $("pull").close();
  $("pull").onclose = () => running && running.abort(); // nobody watches any more: the server ends it
  $("pull-form").onsubmit = async (e) => {
    e.preventDefault();
    const name = $("pull-name").value.trim();
    if (!name || running) return;
    running = new AbortController();
    $("pull-go").disabled = $("pull-name").disabled = true;
    try {
      show({status: t("Asking the hub")});
      for await (const line of pullModel(name, running.signal)) show(line);
      end("");
      $("pull").close();
      changed(name.replace(/^(hf\.co\/|huggingface\.co\/|hf:)/, "").replace(/:latest$/, ""));
    } catch (error) {
      end(error.name === "AbortError" ? "" : error.message);
    }
  };
  $("remove").onclick = async () => {
    const name = $("model").value;
    if (!confirm(t("Delete {name}? Its files go, too.", {name}))) return;
    $("remove").disabled = true;
    try {
      tell("");
      await deleteModel(name);
    } catch (error) {
      tell(error.message);
    }
    $("remove").disabled = false;
    changed("");
  };
}

export function showPulls(stats) {
  const {status} = modelOf($("model").value);
  $("add").hidden = !stats.pull;
  $("remove").hidden = !(stats.pull && status && status.pulled);
}
