// Ranks the entries of the search index. Pure functions.

// The best points of a word in each part of an entry.
const parts = { title: 10, names: 7, where: 4, text: 2 };

// How often a reader looks for each kind of entry.
const kinds = { guide: 1.35, tag: 1.3, operation: 1.25, section: 1.05, event: 1.05, error: 0.95, parameter: 0.9, field: 0.85, header: 0.7, property: 0.6, model: 0.6, change: 0.5 };

/** Splits text into words in lower case. A name such as shipDate is one word and two. */
function words(text) {
  const whole = text.toLowerCase().match(/[\p{L}\d]+/gu) ?? [];
  const pieces = text.replaceAll(/(\p{Ll}|\d)(\p{Lu})/gu, "$1 $2").toLowerCase().match(/[\p{L}\d]+/gu) ?? [];
  return [...new Set([...whole, ...pieces])];
}

const stem = (word) => (word.length > 3 ? word.replace(/ies$/, "y").replace(/(?<=ss|sh|ch|x)es$|(?<=[^s])s$/, "") : word);

const squeezed = (text) => text.toLowerCase().replaceAll(/[^\p{L}\d]/gu, "");

/** Prepares the entries of search.json for [search]. */
export function prepare(entries) {
  return entries.map((entry) => ({
    ...entry,
    squeezed: squeezed(entry.title),
    names: (entry.names ?? "").toLowerCase(),
    words: Object.fromEntries(Object.keys(parts).map((part) => [part, words(entry[part] ?? "")])),
  }));
}

/** Returns the entries that match every word of the query, the best first. */
export function search(entries, query, limit = 20) {
  const wanted = words(query.toLowerCase());
  if (wanted.length === 0) return [];
  const asked = { query: query.trim().toLowerCase(), wanted, whole: squeezed(query) };
  const find = (match) =>
    entries
      .map((entry, at) => ({ entry, at, points: pointsOf(entry, asked, match) }))
      .filter(({ points }) => points > 0)
      .sort((a, b) => b.points - a.points || a.at - b.at)
      .slice(0, limit)
      .map(({ entry }) => entry);
  const exact = find(likeness);
  return exact.length > 0 ? exact : find(typing);
}

function pointsOf(entry, { query, wanted, whole }, match) {
  let points = 0;
  for (const word of wanted) {
    let best = 0;
    for (const [part, most] of Object.entries(parts)) {
      for (const known of entry.words[part]) best = Math.max(best, most * match(word, known));
    }
    if (best === 0 && !entry.squeezed.includes(whole)) return 0;
    points += best;
  }
  points /= wanted.length;
  if (entry.squeezed === whole) points += 8;
  else if (stem(entry.squeezed) === stem(whole)) points += 6;
  else if (` ${entry.names} `.includes(` ${query} `)) points += 4;
  else if (entry.squeezed.startsWith(whole)) points += 2;
  // Of two titles that match, the shorter one is about less else.
  const covered = wanted.filter((word) => entry.words.title.some((known) => match(word, known) > 0)).length;
  points += (3 * covered) / Math.max(entry.words.title.length, wanted.length);
  return points * (kinds[entry.kind] ?? 1);
}

/** Returns how well a word of the query fits a word of an entry, 0 to 1. */
function likeness(word, known) {
  if (word === known) return 1;
  if (stem(word) === stem(known)) return 0.95;
  if (known.startsWith(word) && word.length > 1) return 0.5 + (0.4 * word.length) / known.length;
  return 0;
}

/** Like [likeness], and forgives a typing mistake, or two in long words. */
function typing(word, known) {
  const like = likeness(word, known);
  if (like > 0 || word.length < 4) return like;
  const allowed = word.length < 8 ? 1 : 2;
  if (mistakes(word, known, allowed) <= allowed) return 0.6;
  // The beginning of a longer word, as one types it.
  return known.length > word.length && mistakes(word, known.slice(0, word.length), allowed) <= allowed ? 0.4 : 0;
}

/** Counts the letters to insert, delete, replace or swap. Above limit, the count may be too low. */
function mistakes(a, b, limit) {
  if (Math.abs(a.length - b.length) > limit) return limit + 1;
  let before = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
    }
    [before, row] = [row, next];
  }
  return row[b.length];
}
