const cluster = require('cluster');
if (cluster.isPrimary) {
  const w = cluster.fork();
  w.on('message', (m) => { console.log(m); w.disconnect(); });
  w.on('exit', (c) => console.log('worker', c));
} else {
  process.send([process.argv.length, cluster.worker.id]);
}
