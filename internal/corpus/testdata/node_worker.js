const { Worker, isMainThread, parentPort, workerData, threadId, SHARE_ENV } = require('worker_threads');
const ended = (w) => new Promise((done) => w.on('error', (e) => console.log('error', e.message)).on('exit', (c) => { console.log('ended', c); done(); }));
if (isMainThread) {
  (async () => {
    const w = new Worker(__filename, { workerData: { a: 1 }, argv: ['x'] });
    w.on('message', (m) => console.log(m));
    await ended(w);
    await ended(new Worker('setTimeout(() => { throw new Error("in the worker") }, 1)', { eval: true }));
    await ended(new Worker('console.log(process.env.A, process.execArgv)', { eval: true, env: { A: 'b' } }));
    await ended(new Worker('process.env.SHARED = "1"; console.log(Object.keys(require.cache))', { eval: true, env: SHARE_ENV }));
    console.log(process.env.SHARED);
  })();
} else {
  parentPort.postMessage({
    data: workerData, argv: process.argv.slice(2), exec: process.execArgv, cache: Object.keys(require.cache).length, id: threadId,
    env: Object.keys(process.env).filter((k) => /SPARE|NODE_OPT/.test(k)), main: require.main === module, children: module.children.length,
    globals: Object.getOwnPropertyNames(globalThis).length, typ: typeof SANDBOX_SPARE, paths: Object.keys(require('module')._pathCache).length,
  });
}
