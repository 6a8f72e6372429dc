setTimeout(() => console.log('timeout'), 0);
setImmediate(() => console.log('immediate'));
process.nextTick(() => console.log('tick'));
Promise.resolve().then(() => console.log('promise'));
queueMicrotask(() => console.log('microtask'));
console.log('sync');
const t = Date.now();
setTimeout(() => console.log('waited', Date.now() - t >= 49), 50);
setTimeout(() => {}, 1e6).unref();
const i = setInterval(() => { console.log('interval'); clearInterval(i); }, 70);
// Only a timer that is due when the main program ends is certain to come before setImmediate.
while (Date.now() - t < 3);
