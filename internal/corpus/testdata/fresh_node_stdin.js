process.stdin.setEncoding('utf8');
process.stdin.on('data', (d) => console.log('data', JSON.stringify(d))).on('end', () => console.log('end'));
