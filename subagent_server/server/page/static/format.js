// Figures and times as the terminal shows them.

export const duration = (seconds) => {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${String(s % 60).padStart(2, "0")}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
};

export const tokens = (count) => {
  if (!count) return "";
  if (count < 1000) return String(count);
  const [unit, size] = count < 999500 ? ["k", 1e3] : ["M", 1e6];
  return `${(count / size).toFixed(count >= 10 * size ? 0 : 1)}${unit}`;
};

export const dollars = (amount) => {
  if (amount === undefined || amount === null) return "";
  const value = Number(amount);
  if (!value) return "$0";
  return value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
};

const since = (moment) => (Date.now() - Date.parse(moment)) / 1000;

/** How long a run has been there, or was. */
export const elapsed = (row) =>
  row.createdAt ? duration(row.endedAt ? (Date.parse(row.endedAt) - Date.parse(row.createdAt)) / 1000 : since(row.createdAt)) : "";

export const age = (moment) => (moment ? duration(since(moment)).replace(/(\d+[a-z]).*/, "$1") : "");

export const clock = (moment) => (moment ? new Date(moment).toLocaleString() : "");

export const left = (moment) => {
  const seconds = -since(moment);
  return seconds > 0 ? `expires in ${duration(seconds)}` : "expired";
};

export const shortId = (id) => id.slice(id.lastIndexOf("-") + 1);
