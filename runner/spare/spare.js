// The wait of a spare Node; docs/spare.md says how it comes to run.
//
// Node was started as "node main.js" and requires this as the last step of its
// start. When it returns, Node itself goes on to run main.js: nothing of a
// program's run is imitated here. So all that matters is to leave no trace.
//
// This text is an entry of the environment, in the middle of it a comment: no NUL
// and no end of a comment may be in it.
(() => {
  delete globalThis.SANDBOX_SPARE; // the assignment in front of this
  const Module = require('module');
  delete Module._cache[module.id];
  for (const key of Object.keys(Module._pathCache)) {
    if (Module._pathCache[key] === module.filename) delete Module._pathCache[key];
  }
  const siblings = module.parent ? module.parent.children : [];
  if (siblings.includes(module)) siblings.splice(siblings.indexOf(module), 1);
  // Another list with the same content: Node is going through the present one.
  const preloads = Object.getOwnPropertyDescriptor(process, '_preload_modules');
  if (preloads) {
    preloads.value = preloads.value.filter((name) => name !== '/proc/self/environ');
    Object.defineProperty(process, '_preload_modules', preloads);
  }
  // A worker thread of a program that was handed over requires this once more.
  if (process.env.SANDBOX_SPARE === undefined) return;
  delete process.env.SANDBOX_SPARE;
  delete process.env.SANDBOX_SPARE_END;
  // In its place: the runner restores or removes it later.
  process.env.NODE_OPTIONS = '';

  const fs = require('fs');
  const control = 100; // spareControl in Go
  const receive = (n) => {
    const b = Buffer.alloc(n);
    for (let got = 0; got < n;) {
      const more = fs.readSync(control, b, got, n - got, null);
      if (more === 0) process.reallyExit(0); // the runner has ended
      got += more;
    }
    return b;
  };
  const send = (text) => {
    const body = Buffer.from(text);
    const size = Buffer.alloc(4);
    size.writeUInt32BE(body.length);
    let b = Buffer.concat([size, body]);
    while (b.length > 0) b = b.subarray(fs.writeSync(control, b));
  };
  let fields;
  try {
    send('');
    for (;;) {
      const body = receive(receive(4).readUInt32BE(0)).toString();
      fields = body.slice(1).split('\0');
      if (body[0] !== 'P') break;
      try {
        // Not from the workspace: its package.json is for the program to read.
        Module.createRequire('/main.js')(fields[0]);
        send('');
      } catch (e) {
        send(String(e) || 'it failed');
      }
    }
  } catch {
    process.reallyExit(0); // the runner has ended
  }

  // The hand-over: see handOver in Go.
  fields.shift(); // a program with input gets a Node of its own
  process.chdir(fields.shift());
  const list = () => fields.splice(0, Number(fields.shift()));
  const args = list(), unset = list(), assign = list();
  for (const name of unset) delete process.env[name];
  for (const entry of assign) {
    const i = entry.indexOf('=');
    process.env[entry.slice(0, i)] = entry.slice(i + 1);
  }
  for (const a of args) process.argv.push(a);
  fs.closeSync(control);
})();
