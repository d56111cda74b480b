// The run's sections as they change, over server-sent events.
//
//    the tab with the lock ◄── one stream ── server        every other tab ◄── channel ── that tab
//
// A browser has six connections for one host, however many tabs: one that is seen holds the stream and tells
// the others. A tab that is not seen keeps nothing; one that comes back asks for what changed since its last
// event, and no more.

import { run } from "./route.js";

const NAME = `earl-feed:${run}`;
const AGAIN_MS = 2000;
const LIMIT_MS = 15000;

export class Feed {
  /** told(section, value) for every change; state(text) when the connection comes or goes. */
  constructor(sections, told, state) {
    this.sections = sections;
    this.told = told;
    this.state = state;
    this.known = "";
    // Section → its last event: {section, value, id}.
    this.kept = new Map();
    this.wait = AGAIN_MS;
    this.channel = new BroadcastChannel(NAME);
    this.channel.onmessage = ({ data }) => this.seen && this.heard(data);
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    if (!document.hidden) this.open();
  }

  open() {
    if (this.seen) return;
    this.seen = new AbortController();
    const { signal } = this.seen;
    this.channel.postMessage({ ask: true });
    const held = () => new Promise((release) => {
      if (signal.aborted) {
        release();
        return;
      }
      this.release = release;
      this.connect();
    });
    navigator.locks.request(NAME, { signal }, held).catch(() => {});
  }

  close() {
    this.seen?.abort();
    this.seen = null;
    this.disconnect();
    this.release?.();
    this.release = null;
  }

  /** A message of another tab: a state, an event, or a request for them. */
  heard({ ask, state, event }) {
    if (ask && this.source) {
      this.channel.postMessage({ state: this.known });
      for (const one of this.kept.values()) this.channel.postMessage({ event: one });
    } else if (state) {
      this.say(state);
    } else if (event) {
      this.take(event);
    }
  }

  take(event) {
    if (this.kept.get(event.section)?.id === event.id) return;
    // The newest last.
    this.kept.delete(event.section);
    this.kept.set(event.section, event);
    this.told(event.section, event.value);
  }

  say(state) {
    this.known = state;
    this.state(state);
  }

  /** The newest event that is known, of the server that spoke last. */
  last() {
    const ids = [...this.kept.values()].map((one) => one.id);
    const boot = ids.at(-1)?.split(".")[0];
    const revisions = ids.filter((id) => id.startsWith(`${boot}.`)).map((id) => Number(id.split(".")[1]));
    return boot ? `${boot}.${Math.max(...revisions)}` : "";
  }

  connect() {
    const last = this.last();
    const source = new EventSource(`/api/runs/${encodeURIComponent(run)}/stream${last ? `?last=${last}` : ""}`);
    this.source = source;
    const tell = (state) => {
      this.say(state);
      this.channel.postMessage({ state });
    };
    source.onopen = () => {
      this.wait = AGAIN_MS;
      tell("open");
    };
    for (const section of this.sections) {
      source.addEventListener(section, (sent) => {
        const event = { section, value: JSON.parse(sent.data), id: sent.lastEventId };
        this.take(event);
        this.channel.postMessage({ event });
      });
    }
    source.onerror = () => {
      tell("lost");
      // A stream that was refused is not tried again by the browser.
      if (source.readyState === EventSource.CLOSED) this.again(tell);
    };
  }

  async again(tell) {
    this.disconnect();
    const answer = await fetch("/api/runs").catch(() => null);
    if (answer && answer.status === 401) {
      tell("closed");
      return;
    }
    this.timer = setTimeout(() => this.release && this.connect(), this.wait);
    this.wait = Math.min(this.wait * 2, LIMIT_MS);
  }

  disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}
