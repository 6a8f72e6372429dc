console.log([RegExp.$1, RegExp.lastMatch, RegExp.input, RegExp.$_]);
