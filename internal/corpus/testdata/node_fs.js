const fs = require('fs');
fs.writeFileSync('a', 'x');
const s = fs.createWriteStream('b');
s.write('y');
process.on('exit', () => console.log(fs.readFileSync('a', 'utf8'), fs.existsSync('b')));
fs.promises.readFile('a', 'utf8').then((t) => console.log('read', t));
fs.watchFile('a', { interval: 10 }, () => {}).unref();
process.chdir('/');
console.log(process.cwd(), __dirname !== '/');
