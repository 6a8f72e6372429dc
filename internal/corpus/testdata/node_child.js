const cp = require('child_process');
console.log(cp.execSync('echo out; echo err >&2; cat').toString());
const r = cp.spawnSync('sh', ['-c', 'exit 3'], { stdio: 'inherit' });
console.log(r.status, cp.spawnSync('sh', ['-c', 'kill -9 $$']).signal);
const c = cp.spawn('cat');
c.stdout.on('data', (d) => console.log('cat', d.toString()));
c.on('close', (code) => console.log('closed', code));
c.stdin.end('through');
