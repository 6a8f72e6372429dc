console.log(typeof fetch, typeof structuredClone, typeof crypto, typeof navigator, typeof WebSocket);
console.log(crypto.randomUUID().length, structuredClone({ a: new Date(0) }), new Intl.DateTimeFormat().resolvedOptions().timeZone, new Date(0).toString());
console.log(require('util').inspect(process.release), process.getuid(), process.allowedNodeEnvironmentFlags.size, require('os').tmpdir());
console.log(performance.now() > 0, process.uptime() > 0, process.hrtime().length, Object.getOwnPropertyNames(process).sort().join());
