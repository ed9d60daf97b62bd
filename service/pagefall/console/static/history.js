// The series of /cache/stats, kept from one answer to the next: each brings only what is new.

const KEPT = 450;

function append(old, fresh) {
  if (Array.isArray(fresh)) return old.concat(fresh).slice(-KEPT);
  return Object.fromEntries(Object.entries(fresh).map(([name, column]) => [name, append(old[name] ?? [], column)]));
}

export class History {
  constructor() {
    this.forget();
  }

  forget() {
    this.startedAt = null;
    this.columns = null;
  }

  /** The query for what is not here yet. */
  get query() {
    const last = this.columns?.times.at(-1);
    return last === undefined ? "" : `?since=${last}`;
  }

  /** Takes an answer in; returns false where it is another server's than before, and all must be asked for again. */
  take(stats) {
    if (this.startedAt !== null && this.startedAt !== stats.started_at) {
      this.forget();
      return false;
    }
    this.startedAt = stats.started_at;
    const { interval_seconds: _, smoothing_seconds: __, ...fresh } = stats.series;
    this.columns = append(this.columns ?? {}, fresh);
    return true;
  }

  /** The mean of the last `num` samples of a column. */
  recent(column, num = 5) {
    const values = column.slice(-num);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
  }
}
