// Asking again and again: soon while the server answers, later and later while it does not, not at all while nobody looks.

const LONGEST_WAIT = 4000;

/**
 * Calls `task(signal)` at once, then `interval` ms after each success. `onFailure(error, wait)` hears of a failure, and
 * of the ms until the next try; it returns false to stop. The poll ends with `stop()`; `now()` cuts the present wait, or
 * leaves out the next.
 */
export function poll(task, interval, onFailure) {
  const controller = new AbortController();
  let wake = () => {};
  let isUrgent = false;
  let failures = 0;

  const sleep = (ms) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  const seen = () => document.hidden || wake();

  async function run() {
    document.addEventListener("visibilitychange", seen);
    while (!controller.signal.aborted) {
      let wait = interval;
      isUrgent = false;
      if (!document.hidden) {
        try {
          await task(controller.signal);
          failures = 0;
        } catch (error) {
          if (controller.signal.aborted) break;
          wait = Math.min(1000 * 2 ** failures, LONGEST_WAIT);
          failures += 1;
          if (onFailure(error, wait) === false) break;
        }
      }
      if (!controller.signal.aborted && !isUrgent) await sleep(wait);
    }
    document.removeEventListener("visibilitychange", seen);
  }

  run();
  return {
    stop() {
      controller.abort();
      wake();
    },
    now() {
      isUrgent = true;
      wake();
    },
  };
}
