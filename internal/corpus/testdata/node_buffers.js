process.stdout.write(Buffer.from([...Array(256).keys()]));
console.error('ü € 🎉', '\u0000', new Map([[1, { a: [1, 2, { b: 3 }] }]]));
console.table([{ a: 1, b: 2 }]);
console.log('%s %d %j %o', 'a', 1, { b: 2 }, [3]);
console.trace('here');
console.warn('warned');
