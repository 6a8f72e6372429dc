console.log(process.stdout.isTTY, process.stdout.constructor.name, process.stdout.writableHighWaterMark, process.stdout.fd, process.stdout._type);
console.log(process.stderr.constructor.name, process.stdout.columns, process.stdout.hasColors);
for (let i = 0; i < 2000; i++) process.stdout.write(`${i} ${'x'.repeat(500)}\n`);
process.stderr.write('e'.repeat(200000));
