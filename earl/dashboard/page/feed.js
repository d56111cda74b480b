// The run's sections as they change, over server-sent events.
//
// Only a tab that is seen keeps a connection: a browser has six of them for one host, however many tabs.
// One that comes back asks for what changed since its last event, and no more.

const AGAIN_MS = 2000;
const LIMIT_MS = 15000;

export class Feed {
  /** told(section, value) for every change; state(text) when the connection comes or goes. */
  constructor(sections, told, state) {
    this.sections = sections;
    this.told = told;
    this.state = state;
    this.last = "";
    this.wait = AGAIN_MS;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    if (!document.hidden) this.open();
  }

  open() {
    if (this.source) return;
    clearTimeout(this.timer);
    const source = new EventSource(`/api/stream${this.last ? `?last=${this.last}` : ""}`);
    this.source = source;
    source.onopen = () => {
      this.wait = AGAIN_MS;
      this.state("open");
    };
    for (const name of this.sections) {
      source.addEventListener(name, (event) => {
        this.last = event.lastEventId;
        this.told(name, JSON.parse(event.data));
      });
    }
    source.onerror = () => {
      this.state("lost");
      // A stream that was refused is not tried again by the browser.
      if (source.readyState === EventSource.CLOSED) this.again();
    };
  }

  async again() {
    this.close();
    const answer = await fetch("/api/trajectories?first=0&last=0").catch(() => null);
    if (answer && answer.status === 401) {
      this.state("closed");
      return;
    }
    this.timer = setTimeout(() => document.hidden || this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, LIMIT_MS);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}
