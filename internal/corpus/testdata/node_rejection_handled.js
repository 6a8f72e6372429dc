process.on('unhandledRejection', (r, p) => { console.log('handled', r.message, p instanceof Promise); });
process.on('rejectionHandled', () => console.log('later'));
const p = Promise.reject(new Error('x'));
setTimeout(() => p.catch(() => {}), 5);
