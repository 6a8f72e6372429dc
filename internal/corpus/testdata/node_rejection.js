process.on('exit', (c) => console.log('exit', c));
Promise.reject(new Error('nobody handles it'));
setTimeout(() => console.log('never'), 1000);
