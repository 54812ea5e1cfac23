// The page works without this script. With it, every moment of the step can be looked at: who holds memory, and why.
// Texts come from a file that nobody vouches for: they enter the page as text nodes only.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { ops, steps, held } = data;
  const count = steps.op.length;
  if (count < 2) return;
  const WIDTH = 10000, HEIGHT = 1000, HEADROOM = 1.12, SHOWN = 10;
  const NS = "http://www.w3.org/2000/svg";
  const get = (id) => document.getElementById(id);
  const stage = get("stage"), memory = get("memory"), lanes = get("lanes"), axis = get("axis");
  const limit = data.top * HEADROOM;
  const again = new Uint8Array(count);
  for (const at of steps.again) again[at] = 1;

  // First and last step of every stretch of held memory.
  const first = new Int32Array(held.first.length), last = new Int32Array(held.first.length);
  held.first.forEach((more, i) => {
    first[i] = (i ? first[i - 1] : 0) + more;
    last[i] = first[i] + held.more[i];
  });

  // Start times of all steps, and the end of the last step.
  const starts = new Float64Array(count + 1);
  for (let at = 0; at < count; at++) {
    const op = steps.op[at];
    starts[at + 1] = starts[at] + (op < 0 ? 0 : data.costed ? ops.ns[op] : 1);
  }
  const end = starts[count];

  // Periods in which a single instance of a block runs.
  const stretches = [];
  for (let at = 0; at < count; at++) {
    const place = steps.op[at] < 0 ? -1 : ops.place[steps.op[at]], latest = stretches[stretches.length - 1];
    if (latest && latest.place === place && at !== data.backward_start + 1) latest.end = starts[at + 1];
    else if (place >= 0) stretches.push({ place, start: starts[at], end: starts[at + 1] });
  }

  let from = 0, to = data.span, chosen = data.peak, pinned = data.peak;

  // ---- texts

  const digits = (amount) => (Math.abs(amount) < 9.995 ? 2 : Math.abs(amount) < 99.95 ? 1 : 0);
  function scaled(amount, units, factor, edge) {
    let at = 0;
    while (Math.abs(amount) >= edge && at < units.length - 1) { amount /= factor; at++; }
    return [amount, units[at]];
  }
  function size(bytes) {
    const [amount, unit] = scaled(bytes, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024, 1023.995);
    return unit === "B" ? `${bytes} B` : `${amount.toFixed(digits(amount))} ${unit}`;
  }
  function duration(ns) {
    const [amount, unit] = scaled(ns, ["ns", "us", "ms", "s"], 1000, 999.995);
    return `${amount.toFixed(digits(amount))} ${unit}`;
  }
  const full = (place, local) => (place < 0 ? "" : data.places[place] + ".") + data.locals[local];
  const idOf = (op) => full(ops.place[op], ops.local[op]);
  const pattern = (name) => name.split(".").map((part) => (/^\d+$/.test(part) ? "*" : part)).join(".");

  // ---- elements

  function make(tag, attributes = {}, ...children) {
    const element = ["svg", "g", "line", "path", "rect", "text", "title"].includes(tag)
      ? document.createElementNS(NS, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  const isolated = (text) => make("bdi", {}, text);
  function code(name) {  // can break after its dots
    const parts = name.split(".").flatMap((part, i) => (i ? [".", make("wbr"), part] : [part]));
    return make("code", {}, make("bdi", {}, ...parts));
  }
  const percent = (share) => `${(share * 100).toFixed(3)}%`;
  const x = (time) => (time - from) / (to - from);

  // ---- contents of memory at a step

  function holders(at) {
    const groups = new Map();
    let total = 0;
    for (let i = 0; i < first.length && first[i] <= at; i++) {
      if (last[i] < at) continue;
      const key = `${pattern(full(held.place[i], held.local[i]))}\n${held.type[i]}\n${held.role[i]}`;
      let group = groups.get(key);
      if (!group) groups.set(key, group = { first: i, count: 0, bytes: 0 });
      group.count++;
      group.bytes += held.bytes[i];
      total += held.bytes[i];
    }
    const sorted = [...groups.values()].sort((a, b) => b.bytes - a.bytes);
    return { total, sorted };
  }
  function nameOf(group) {
    const name = full(held.place[group.first], held.local[group.first]);
    return group.count > 1 ? pattern(name) : name;
  }

  // ---- the readout

  const partOf = (at) => (at === data.backward_start ? "boundary" : again[at] ? "recompute" : at < data.backward_start ? "forward" : "backward");
  const titleOf = (at) => (steps.op[at] >= 0 ? idOf(steps.op[at]) : at === data.backward_start ? "forward/backward boundary" : "update of a buffer");

  function figures(at) {
    const op = steps.op[at];
    const rows = [
      ["Memory", `${size(steps.during[at])}, ${(steps.during[at] / data.budget * 100).toFixed(1)}% of the budget`],
      ["After it", size(steps.after[at])],
    ];
    if (op >= 0) {
      rows.push(["Takes", duration(ops.ns[op])]);
      if (ops.workspace[op]) rows.push(["Workspace", size(ops.workspace[op])]);
    }
    rows.push(["Begins at", data.costed ? duration(starts[at]) : `step ${starts[at]}`], ["Step", `${at + 1} of ${count}`]);
    return rows;
  }

  function readout(at) {
    const op = steps.op[at];
    get("what").replaceChildren(code(titleOf(at)));
    const about = [partOf(at)];
    if (op >= 0) {
      about.push(data.overloads[ops.op[op]]);
      if (data.sources[ops.source[op]]) about.push(data.sources[ops.source[op]]);
    }
    get("which").replaceChildren(...about.flatMap((text, i) => (i ? [" · ", isolated(text)] : [isolated(text)])));
    get("figures").replaceChildren(
      ...figures(at).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    const { total, sorted } = holders(at);
    const workspace = op >= 0 ? ops.workspace[op] : 0;
    get("total").textContent = `Held: ${size(total)}` + (workspace ? `, and ${size(workspace)} of workspace` : "");
    const rows = sorted.slice(0, SHOWN).map((group) => make("tr", {},
      make("td", { class: "n" }, size(group.bytes)),
      make("td", {}, bar(group.bytes / total)),
      make("td", { class: "n" }, `${group.count}×`),
      make("td", {}, code(nameOf(group)), " ",
        make("span", { class: "aside" }, held.types[held.type[group.first]])),
      make("td", {}, data.roles[held.role[group.first]])));
    if (sorted.length > SHOWN) {
      const rest = sorted.slice(SHOWN).reduce((sum, group) => sum + group.bytes, 0);
      rows.push(make("tr", {}, make("td", { class: "n" }, size(rest)), make("td"), make("td"),
        make("td", {}, `${sorted.length - SHOWN} more`), make("td")));
    }
    get("holders").replaceChildren(...rows);
  }

  function bar(share) {
    return make("svg", { class: "bar", "aria-hidden": "true" },
      make("rect", { class: "all", width: "100%", height: "100%" }),
      make("rect", { width: percent(share), height: "100%" }));
  }

  let pending = 0;
  function choose(at) {
    chosen = Math.max(0, Math.min(count - 1, at));
    if (!pending) pending = requestAnimationFrame(() => { pending = 0; show(); });
  }
  function pin(at, say = true) {
    choose(at);
    pinned = chosen;
    if (say) get("live").textContent = `${titleOf(chosen)}, ${partOf(chosen)}, ${size(steps.during[chosen])}`;
  }
  function show() {
    readout(chosen);
    const at = starts[chosen], seen = at >= from && at <= to;
    for (const chart of [memory, lanes]) {
      const cursor = chart.querySelector(".cursor"), line = cursor.querySelector("line");
      cursor.setAttribute("visibility", seen ? "visible" : "hidden");
      line.setAttribute("x1", percent(x(at)));
      line.setAttribute("x2", percent(x(at)));
    }
    const dot = memory.querySelector(".cursor circle");
    dot.setAttribute("cx", percent(x(at)));
    dot.setAttribute("cy", percent(1 - steps.during[chosen] / limit));
    stage.setAttribute("aria-valuenow", String(chosen + 1));
    stage.setAttribute("aria-valuetext", `${titleOf(chosen)}, ${partOf(chosen)}, ${size(steps.during[chosen])}`);
  }

  // ---- drawing the part from `from` to `to`

  // Draw a staircase through the (time, level) pairs that `each` yields, with four points per column of pixels.
  function line(each, close) {
    let path = "", column = -1, first = 0, low = 0, high = 0, last = 0, lastX = 0;
    const put = (level) => { path += `${path ? "L" : "M"}${lastX} ${Math.round((1 - level / limit) * HEIGHT)}`; };
    const flush = () => {
      if (column < 0) return;
      put(first);
      if (high !== low) { put(high); put(low); }
      put(last);
    };
    each((time, level) => {
      const at = Math.max(-0.01, Math.min(1.01, x(time)));
      const here = Math.round(at * WIDTH / 4) + 100;
      if (here !== column) {
        flush();
        column = here;
        lastX = Math.round(at * WIDTH);
        first = low = high = level;
      }
      low = Math.min(low, level);
      high = Math.max(high, level);
      last = level;
    });
    flush();
    return close ? `${path}L${lastX} ${HEIGHT}L${Math.round(Math.max(-0.01, x(0)) * WIDTH)} ${HEIGHT}Z` : path;
  }
  const ours = (put) => {
    put(0, 0);
    for (let at = 0; at < count; at++) {
      put(starts[at], steps.during[at]);
      put(starts[at + 1], steps.during[at]);
      put(starts[at + 1], steps.after[at]);
    }
  };
  const points = ([times, levels]) => (put) => times.forEach((time, i) => put(time, levels[i]));

  function boxes(kind, top) {
    let path = "", left = null, right = null; // both can be left of the edge
    const flush = () => {
      if (left !== null) path += `M${left} ${top}h${right - left - (right - left > 12 ? 3 : 0)}v290H${left}z`;
    };
    for (let at = 0; at < count; at++) {
      if (partOf(at) !== kind || starts[at + 1] < from || starts[at] > to || starts[at + 1] === starts[at]) continue;
      const a = Math.round(Math.max(-0.01, x(starts[at])) * WIDTH);
      const b = Math.max(Math.round(Math.min(1.01, x(starts[at + 1])) * WIDTH), a + 2);
      if (left !== null && a - right < 3 && (b - a < 12 || a < right)) { right = Math.max(b, right); continue; }
      flush();
      [left, right] = [a, b];
    }
    flush();
    return path;
  }

  // Draw stretches of steps of a block, with the name where it fits.
  function blocks() {
    const groups = [], width = stage.clientWidth || 1000;
    let number = 0;
    for (const stretch of stretches) {
      number++;
      const a = Math.max(0, x(stretch.start)), b = Math.min(1, x(stretch.end));
      if ((b - a) * width < 3) continue;
      const group = make("svg", { x: percent(a), y: "0", width: percent(b - a), height: "30%" },
        make("title", {}, data.places[stretch.place]),
        make("rect", { width: percent(1 - 1 / ((b - a) * width)), height: "100%" }));
      if (number % 2) group.setAttribute("class", "other");
      const parts = data.places[stretch.place].split(".");
      const name = [parts, parts.slice(-2), parts.slice(-1)].map((some) => some.join("."))
        .find((some) => some.length * 7 + 6 < (b - a) * width);
      if (name) group.append(make("text", { x: "50%", y: "14", "text-anchor": "middle" }, name));
      groups.push(group);
    }
    lanes.querySelector(".blocks").replaceChildren(...groups);
  }

  function ticks(span, about) {
    const power = 10 ** Math.floor(Math.log10(Math.max(span / about, 1)));
    return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= span / about) || power;
  }

  function redraw() {
    const set = (kind, path) => memory.querySelector(`path.${kind}`)?.setAttribute("d", path);
    set("ours", line(ours, true));
    set("base", line(points(data.keepAll), true));
    if (data.measured) set("measured", line(points(data.measured), false));
    for (const [kind, top] of [["forward", 320], ["backward", 320], ["recompute", 680]]) {
      lanes.querySelector(`path.${kind}`).setAttribute("d", boxes(kind, top));
    }
    blocks();
    for (const piece of memory.querySelectorAll(".backward_start > *")) {
      for (const name of piece.tagName === "line" ? ["x1", "x2"] : ["x"]) piece.setAttribute(name, percent(x(starts[data.backward_start])));
    }
    memory.querySelector("circle.peak").setAttribute("cx", percent(x(starts[data.peak])));
    const step = ticks(to - from, stage.clientWidth < 560 ? 3 : 6), marks = [];
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const share = x(time);
      const anchor = share < 0.05 ? "start" : share > 0.95 ? "end" : "middle";
      marks.push(make("text", { x: percent(share), y: "14", "text-anchor": anchor },
        time === 0 ? "0" : data.costed ? duration(time) : `step ${time}`));
    }
    axis.replaceChildren(...marks);
    show();
  }

  function zoom(start, stop) {
    const width = Math.min(Math.max(stop - start, Math.min(data.span, 20)), data.span);
    from = Math.max(0, Math.min(start, data.span - width));
    to = from + width;
    redraw();
  }
  function scale(factor) {
    const about = Math.max(from, Math.min(to, starts[chosen]));
    zoom(about - (about - from) * factor, about + (to - about) * factor);
  }
  function reveal() {
    const at = starts[chosen];
    if (at < from || at > to) zoom(at - (to - from) / 2, at + (to - from) / 2);
  }

  // ---- input

  // Return the step that runs at a time. Of steps without time, take the step with the most memory.
  function stepAt(time) {
    let low = 0, high = count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= time) low = middle; else high = middle - 1;
    }
    let best = low;
    for (let at = low - 1; at >= 0 && starts[at] === starts[low]; at--) {
      if (steps.during[at] > steps.during[best]) best = at;
    }
    return best;
  }
  const timeAt = (event) => {
    const box = memory.getBoundingClientRect();
    return from + Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * (to - from);
  };

  let pressed = null;
  const brush = make("div", { id: "brush", hidden: "" });
  stage.append(brush);
  stage.addEventListener("pointerdown", (event) => { if (event.button === 0) pressed = { x: event.clientX, time: timeAt(event) }; });
  stage.addEventListener("pointermove", (event) => {
    choose(stepAt(timeAt(event)));
    const far = pressed && event.pointerType === "mouse" && Math.abs(event.clientX - pressed.x) > 6;
    brush.hidden = !far;
    if (far) {
      const [a, b] = [x(pressed.time), x(timeAt(event))].sort((p, q) => p - q);
      brush.style.left = percent(a);
      brush.style.width = percent(b - a);
    }
  });
  stage.addEventListener("pointerup", (event) => {
    const start = pressed, zooms = !brush.hidden;
    pressed = null;
    brush.hidden = true;
    if (start && zooms) zoom(Math.min(start.time, timeAt(event)), Math.max(start.time, timeAt(event)));
    else if (start) pin(stepAt(timeAt(event)));
  });
  const leave = () => { pressed = null; brush.hidden = true; choose(pinned); };
  stage.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
  stage.addEventListener("pointercancel", leave);

  const actions = {
    before: () => pin(chosen - 1),
    after: () => pin(chosen + 1),
    peak: () => pin(data.peak),
    in: () => scale(0.5),
    out: () => scale(2),
    all: () => zoom(0, data.span),
  };
  get("tools").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-do]");
    if (button) { actions[button.dataset.do](); if (!["in", "out", "all"].includes(button.dataset.do)) reveal(); }
  });
  const far = Math.max(10, Math.round(count / 50));
  const keys = {
    ArrowLeft: actions.before, ArrowRight: actions.after, ArrowUp: actions.after, ArrowDown: actions.before,
    PageUp: () => pin(chosen + far), PageDown: () => pin(chosen - far),
    Home: () => pin(0), End: () => pin(count - 1),
    p: actions.peak, "+": actions.in, "-": actions.out, 0: actions.all,
  };
  stage.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
    if (!["+", "-", "0"].includes(event.key)) reveal();
  });

  get("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = get("wanted").value.trim();
    let match = -1;
    for (let i = 1; wanted && i <= count && match < 0; i++) {
      const at = (chosen + i) % count;
      if (titleOf(at).includes(wanted)) match = at;
    }
    get("wanted").classList.toggle("missing", wanted !== "" && match < 0);
    if (match >= 0) { pin(match); reveal(); }
    else if (wanted) get("live").textContent = `no operation contains ${wanted}`;
  });

  stage.tabIndex = 0;
  stage.setAttribute("role", "slider");
  stage.setAttribute("aria-label", "Operation of the step");
  stage.setAttribute("aria-describedby", "hint");
  stage.setAttribute("aria-valuemin", "1");
  stage.setAttribute("aria-valuemax", String(count));
  get("moment").open = false;
  get("tools").hidden = get("readout").hidden = false;
  addEventListener("resize", redraw);
  redraw();
})();
