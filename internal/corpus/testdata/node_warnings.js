process.emitWarning('mine', { code: 'W1', detail: 'more' });
new Buffer(1);
process.on('warning', (w) => console.log(w.name, w.code));
const e = new (require('events'))();
for (let i = 0; i < 12; i++) e.on('x', () => {});
