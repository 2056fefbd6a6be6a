// A PORT of selection/judging.py (with numeric/selection.py, selection/leave_one_out.py and audit/diff.py) for the browser:
// the same numbers as `curate diff`. The rule lives there; a change there is ported here, and the property tests of
// tests/outputs/test_compare_page.py hold the two against each other on random pools and policies.
// Rows are those that raw kept, sorted by sample_id: ties go by position, and so by sample_id.
"use strict";

const KEPT = 0, DROPPED = 1, FAILED = 2, STATES = ["kept", "dropped", "failed"];

// fraction of n, rounded half up, the fraction read as the decimal that was written (0.285 of 100 is 29).
function shareCount(n, fraction) {
  if (!(fraction > 0 && fraction <= 1)) throw new Error(`fraction must be in (0, 1], got ${fraction}`);
  const [mantissa, exponent = "0"] = String(fraction).split("e");
  const [whole, decimals = ""] = mantissa.split(".");
  const places = decimals.length - Number(exponent);
  const digits = BigInt(whole + decimals);
  if (places <= 0) return Number(BigInt(n) * digits * 10n ** BigInt(-places));
  const scale = 10n ** BigInt(places);
  return Number((2n * BigInt(n) * digits + scale) / (2n * scale));
}

// A threshold as JSON has it: null, a number, "Infinity" or "-Infinity".
const limit = (value) => (value === null ? null : Number(value));
const finite = (value) => (Number.isFinite(value) ? value : null);

class NothingToCut extends Error {}

// What one cut of a policy passes: [count, threshold] of values `ordered` best first; higher is better.
// `step`: one of fraction, threshold and count is given. `ofPool`: gives the values of the whole pool, best first.
function cutOf(policy, ordered, poolSize, step, ofPool) {
  const { fraction, threshold: value } = step;
  if (value !== null) {
    let count = 0;
    while (count < ordered.length && ordered[count] >= value) count += 1;
    return [count, value];
  }
  if (policy.semantics === "compat") {
    const all = ofPool();
    if (!all.length) throw new NothingToCut(`no sample has a value of ${step.rank_by}; nothing to cut`);
    const threshold = all[Math.floor(all.length * fraction)];
    let count = 0;
    while (count < ordered.length && ordered[count] >= threshold) count += 1;
    return [count, threshold];
  }
  const count = Math.min(fraction === null ? step.count : shareCount(poolSize, fraction), ordered.length);
  return [count, count ? ordered[count - 1] : NaN];
}

const MADE_AGAIN = 1e-6;  // as selection/judging.py has it

// How many of the rows `valued`, best first, pass a frozen cut: above its threshold, or at it with an id up to the last.
function passing(cut, column, valued, ids) {
  const { threshold } = cut;
  const isEdge = (i) => ids[i] === cut.boundary_id && threshold - column[i] <= MADE_AGAIN * Math.max(1, Math.abs(threshold));
  const fails = (i) => !(column[i] > threshold || isEdge(i) || (column[i] === threshold
    && (cut.boundary_id === null || ids[i] <= cut.boundary_id)));
  const first = threshold === null ? 0 : valued.findIndex(fails);
  return first < 0 ? valued.length : first;
}

// One verdict per row; a policy with frozen `cuts` is judged by them, another is fitted.
// Rows of `policy.left_out` ({words, codes}, -1 for none) count as if raw had not kept them.
// `values`: reference → Float64Array, NaN where there is none. `lower`: references of which lower values are better;
// they are ranked negated, and so are their thresholds.
function judge(policy, values, n, ids, lower) {
  const verdict = new Uint8Array(n), step = new Int8Array(n), rank = new Uint32Array(n), thresholds = [];
  const steps = [...policy.prefilters, policy], leftOut = policy.left_out?.codes;
  let candidates = Uint32Array.from({ length: n }, (_, i) => i).filter((i) => !(leftOut?.[i] >= 0));
  const first = candidates;
  if (leftOut) leftOut.forEach((code, i) => { if (code >= 0) { verdict[i] = DROPPED; step[i] = -1; } });
  steps.forEach((one, number) => {
    const reference = one.rank_by;
    const own = values[reference === "random" ? `random:${policy.seed}` : reference];
    if (!own) throw new Error(`this page holds no values of ${reference}; use curate diff`);
    const sign = lower.includes(reference) ? -1 : 1, column = sign < 0 ? own.map((value) => -value) : own;
    const ranked = (cut) => ({ ...cut, threshold: limit(cut.threshold) === null ? null : sign * limit(cut.threshold) });
    const valued = candidates.filter((i) => !Number.isNaN(column[i])).sort((a, b) => column[b] - column[a] || a - b);
    const frozen = policy.cuts ? ranked(policy.cuts[number]) : null;
    const [count, threshold] = frozen ? [passing(frozen, column, valued, ids), frozen.threshold ?? NaN]
      : cutOf(policy, Array.from(valued, (i) => column[i]), first.length, ranked(one),
        () => Float64Array.from(first, (i) => column[i]).filter((value) => !Number.isNaN(value)).sort().reverse());
    thresholds.push(sign * threshold);
    for (const i of candidates) { step[i] = number; rank[i] = 0; if (Number.isNaN(column[i])) verdict[i] = FAILED; }
    valued.forEach((i, index) => { rank[i] = index + 1; if (index >= count) verdict[i] = DROPPED; });
    candidates = valued.slice(0, count).sort();
  });
  return { policy, verdict, step, rank, thresholds, judged: first.length };
}

// How far a value is better than a threshold.
const margin = (data, reference, value, threshold) => finite((data.lower.includes(reference) ? -1 : 1) * (value - threshold));

function overlapOf(left, right, n = left.length) {
  let a = 0, b = 0, both = 0;
  for (let i = 0; i < left.length; i += 1) {
    if (left[i] === KEPT) a += 1;
    if (right[i] === KEPT) b += 1;
    if (left[i] === KEPT && right[i] === KEPT) both += 1;
  }
  const either = a + b - both, chance = n ? (a * b) / n : 0;
  return {
    left: a, right: b, both, only_left: a - both, only_right: b - both,
    iou: either ? both / either : null, chance_iou: n && a + b ? chance / (a + b - chance) : null,
  };
}

// Shares of the groups of one dimension; codes -1 are in no group.
function shiftsOf(dimension, left, right) {
  const rows = dimension.words.map((group) => ({ group, pool: 0, left: 0, right: 0 }));
  let a = 0, b = 0;
  dimension.codes.forEach((code, i) => {
    if (left[i] === KEPT) a += 1;
    if (right[i] === KEPT) b += 1;
    if (code < 0) return;
    rows[code].pool += 1;
    if (left[i] === KEPT) rows[code].left += 1;
    if (right[i] === KEPT) rows[code].right += 1;
  });
  for (const row of rows) {
    row.left_share = row.left / Math.max(a, 1);
    row.right_share = row.right / Math.max(b, 1);
    row.change = row.right_share - row.left_share;
  }
  return rows.sort((x, y) => Math.abs(y.change) - Math.abs(x.change) || (x.group < y.group ? -1 : 1));
}

// The policy without each of its signals: how many it keeps, and IoU with what it kept.
function leaveOneOut(judged, data) {
  const { policy } = judged, records = [];
  const add = (without, reduced, values) => {
    let other = null; // not defined: nothing is left, or what is left ranks by a signal without values
    try {
      if (reduced !== null) other = judge({ ...reduced, cuts: null }, values, data.n, data.ids, data.lower).verdict;
    } catch (error) {
      if (!(error instanceof NothingToCut)) throw error;
    }
    if (other === null) { records.push({ policy: policy.name, without, kept: null, iou: null }); return; }
    const overlap = overlapOf(judged.verdict, other);
    records.push({ policy: policy.name, without, kept: overlap.right, iou: overlap.iou });
  };
  policy.prefilters.forEach((prefilter, index) => {
    const others = policy.prefilters.filter((_, other) => other !== index);
    add(prefilter.rank_by, { ...policy, prefilters: others }, data.values);
  });
  if (policy.rank_by.startsWith("fused.")) {
    const recipe = data.recipes[policy.rank_by] || { names: [], weights: null };
    for (const name of recipe.names.length > 1 ? recipe.names : []) {
      const label = name.replace(/_score$/, "");
      if (recipe.weights === null || policy.fraction === null) { add(label, null); continue; }
      const rest = new Float64Array(data.n);
      for (const other of recipe.names) {
        if (other !== name) recipe.scores[other].forEach((value, i) => { rest[i] += recipe.weights[other] * value; });
      }
      add(label, policy, { ...data.values, [policy.rank_by]: rest });
    }
  } else if (policy.prefilters.length && policy.rank_by !== "random") {
    const last = policy.prefilters[policy.prefilters.length - 1];
    const reduced = { ...policy, rank_by: last.rank_by, prefilters: policy.prefilters.slice(0, -1) };
    add(policy.rank_by, policy.fraction === null ? null : reduced, data.values);
  }
  return records;
}

// The samples that the last cut dropped by the smallest margin.
function nearestDropped(judged, other, data, count) {
  const last = judged.thresholds.length - 1, { policy } = judged;
  const column = data.values[policy.rank_by === "random" ? `random:${policy.seed}` : policy.rank_by];
  const dropped = [];
  for (let i = 0; i < data.n; i += 1) if (judged.verdict[i] === DROPPED && judged.step[i] === last) dropped.push(i);
  dropped.sort((a, b) => judged.rank[a] - judged.rank[b]);
  return dropped.slice(0, count).map((i) => ({
    policy: policy.name, row: i, sample_id: data.ids[i], caption: data.captions[i], value: column[i],
    reason: `below_cut:${policy.rank_by}`,
    margin: margin(data, policy.rank_by, column[i], judged.thresholds[last]),
    other_verdict: STATES[other.verdict[i]],
  }));
}

function transitionsOf(left, right, raw) {
  const counts = [[0, 0, 0], [0, raw.dropped, 0], [0, 0, raw.failed]];
  left.forEach((code, i) => { counts[code][right[i]] += 1; });
  const transitions = [];
  counts.forEach((row, i) => row.forEach((rows, j) => {
    if (rows) transitions.push({ left_verdict: STATES[i], right_verdict: STATES[j], rows });
  }));
  return transitions;
}

// Everything that `curate diff --json` has about two policies.
function compare(left, right, data, nearest = 10) {
  const [one, other] = [left, right].map((policy) => judge(policy, data.values, data.n, data.ids, data.lower));
  const same = JSON.stringify(left) === JSON.stringify(right), judged = Math.max(one.judged, other.judged);
  return {
    judged,
    overlap: overlapOf(one.verdict, other.verdict, judged),
    transitions: transitionsOf(one.verdict, other.verdict, data.raw),
    shifts: data.dimensions.map((dimension) => ({
      dimension: dimension.name, rows: shiftsOf(dimension, one.verdict, other.verdict),
    })),
    leave_one_out: [...leaveOneOut(one, data), ...(same ? [] : leaveOneOut(other, data))],
    nearest: [...nearestDropped(one, other, data, nearest), ...nearestDropped(other, one, data, nearest)],
    thresholds: [one.thresholds.at(-1), other.thresholds.at(-1)],
  };
}

// Row of a sample: by its sample_id, or the first whose caption holds the text; -1 where there is none.
function rowOf(text, data) {
  const wanted = text.trim().toLowerCase(), row = data.ids.indexOf(wanted);
  return row >= 0 || !wanted ? row : data.captions.findIndex((caption) => caption.toLowerCase().includes(wanted));
}

// The verdict of every policy on one row, as `curate why` has it.
function whyOf(row, policies, data) {
  return policies.map((policy) => {
    const { verdict, step, rank, thresholds } = judge(policy, data.values, data.n, data.ids, data.lower);
    if (step[row] < 0) { // before the first cut: by its licence, or as part of a benchmark
      const reason = policy.left_out.words[policy.left_out.codes[row]];
      return {
        policy: policy.name, verdict: STATES[DROPPED], decided_by: reason, value: null, threshold: null, margin: null,
        rank: null,
      };
    }
    const { rank_by: by } = [...policy.prefilters, policy][step[row]], threshold = thresholds[step[row]];
    const value = data.values[by === "random" ? `random:${policy.seed}` : by][row];
    const number = (float) => (Number.isNaN(float) ? null : float);
    return {
      policy: policy.name, verdict: STATES[verdict[row]], decided_by: by, value: number(value),
      threshold: number(threshold), margin: margin(data, by, value, threshold), rank: rank[row] || null,
    };
  });
}

// The embedded data: base64 of little-endian float64 becomes Float64Array.
function unpack(packed) {
  const floats = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Float64Array(bytes.buffer);
  };
  const each = (object) => Object.fromEntries(Object.entries(object).map(([name, text]) => [name, floats(text)]));
  const recipes = Object.fromEntries(Object.entries(packed.recipes).map(([name, one]) => [
    name, { names: Object.keys(one.scores), weights: one.weights, scores: each(one.scores) },
  ]));
  return { ...packed, values: each(packed.values), recipes };
}

if (typeof module !== "undefined") module.exports = { compare, judge, rowOf, shareCount, unpack, whyOf };
