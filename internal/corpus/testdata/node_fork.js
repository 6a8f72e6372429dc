const cp = require('child_process');
if (process.send) {
  process.send({ argv: process.argv.slice(2), exec: process.execArgv, opts: process.env.NODE_OPTIONS, spare: process.env.SANDBOX_SPARE });
  process.disconnect();
} else {
  const c = cp.fork(__filename, ['child']);
  c.on('message', (m) => console.log(m));
  c.on('exit', (code) => console.log('exit', code));
}
