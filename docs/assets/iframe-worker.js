/* Browsers start no worker from a page opened from disk (file:), and Material for MkDocs searches in one. There an invisible
   frame takes its place: it runs the worker's script and passes messages both ways. Elsewhere nothing changes. The theme looks
   for the name IFrameWorker, and its plugin `offline` for this file's name: without it, it would load one from the network. */
"use strict";
function deliver(receiver, data) {
  setTimeout(() => receiver.dispatchEvent(new MessageEvent("message", { data }))); // later, as between threads
}

class IFrameWorker extends EventTarget {
  constructor(address) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    const inner = this.frame.contentWindow;
    inner.document.open(); // Firefox would replace the frame's first document later, with the script in it
    inner.document.write("<body></body>");
    inner.document.close();
    inner.postMessage = (data) => deliver(this, data);
    inner.importScripts = async (...names) => {
      for (const name of names) await this.load(name);
    };
    this.ready = this.load(address);
  }

  load(address) {
    const script = this.frame.contentDocument.createElement("script");
    script.src = address;
    return new Promise((resolve, reject) => {
      script.onload = resolve;
      script.onerror = reject;
      this.frame.contentDocument.body.appendChild(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => deliver(this.frame.contentWindow, data));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
