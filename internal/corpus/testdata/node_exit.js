process.on('exit', (c) => console.log('exit', c));
process.on('beforeExit', () => console.log('never'));
setTimeout(() => {}, 100000);
process.exit(9);
