console.log(process.stdin.isTTY, process.stdin.constructor.name, process.stdin.fd);
process.stdin.on('data', (d) => console.log('data', d)).on('end', () => console.log('end'));
console.log(require('fs').readFileSync(0).length, require('fs').fstatSync(0).isCharacterDevice());
