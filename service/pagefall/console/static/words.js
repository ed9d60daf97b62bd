// What the server's words are called on the page, and in which order they come.

export const TIERS = ["device", "host", "storage"];
export const SOURCES = ["device", "host", "storage", "computed", "unreached"];

export const SOURCE_WORDS = {
  device: "device memory",
  host: "host memory",
  storage: "the store",
  computed: "computed",
  unreached: "not reached",
};

export const REASON_WORDS = {
  never_seen: "never seen before",
  diverged: "prompt diverged",
  evicted: "evicted",
  other_salt: "cached under another salt",
  other_namespace: "stored by another model",
  page_tail: "last page of a prompt",
  below_threshold: "too few to ask the store",
  slower_than_recompute: "computing was quicker",
  timed_out: "store too slow",
  store_down: "store down",
  corrupt: "damaged in the store",
  no_room: "no room in host memory",
  copy_failed: "copy failed",
  cache_disabled: "cache disabled",
  scored: "computed for its log-probabilities",
  unreached: "request ended before",
};

/** By `finish_reason`, or by the state of what has not ended: words, and how they look. */
export const STATE_WORDS = {
  queued: ["waiting", "warn"],
  running: ["writing", "good"],
  ended: ["ended", ""],
  stop: ["complete", ""],
  length: ["cut at the limit", ""],
  abort: ["aborted", "warn"],
};

export const BREAKER_WORDS = {
  closed: ["answering", "good"],
  half_open: ["being tried again", "warn"],
  open: ["not answering", "bad"],
};

export const WORKER_STATE_WORDS = {
  joining: ["joining", "warn"],
  healthy: ["healthy", "good"],
  unhealthy: ["unhealthy", "bad"],
  draining: ["draining", "warn"],
};
