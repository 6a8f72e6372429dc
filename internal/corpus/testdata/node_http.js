const http = require('http');
const s = http.createServer((q, r) => r.end('hello ' + q.url)).listen(0, '127.0.0.1', () => {
  http.get({ port: s.address().port, path: '/x', agent: false }, (r) => {
    r.on('data', (d) => console.log(r.statusCode, d.toString()));
    r.on('end', () => s.close(() => console.log('closed')));
  });
});
