// Numbers for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(value) {
  return whole.format(value);
}

/** 1,234 as it is, 12,345 as 12.3K. */
export function compact(value) {
  return Math.abs(value) < 10_000 ? whole.format(value) : short.format(value);
}

/** `singular` may be a phrase that ends in the noun. */
export function plural(value, singular, many = `${singular}s`) {
  return `${count(value)} ${value === 1 ? singular : many}`;
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)}%`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.5 ? Math.round(value) : value.toPrecision(value < 9.95 ? 2 : 3)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return value === 0 ? "0 s" : `${(value * 1000).toFixed(2)} ms`;
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 99.5) return `${value.toPrecision(value < 9.95 ? 2 : 3)} s`;
  if (value < 5940) return `${(value / 60).toFixed(value < 594 ? 1 : 0)} min`;
  if (value < 172_800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86_400).toFixed(1)} days`;
}

/** A Unix time as the clock on the wall shows it. */
export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}
