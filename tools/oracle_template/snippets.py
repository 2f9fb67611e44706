"""Small templates that together touch every construct of src/text/template*.c.

What: SNIPPETS, a list of (group, source). All are rendered with VARIABLES.
Why here: whole chat templates use few constructs each; these try the edges.
Must not know: what comes out.
"""

VARIABLES = {
    "name": "World",
    "empty": "",
    "text": "  The quick brown fox\tjumps  ",
    "lines": "one\ntwo\r\n\nthree\n",
    "unicode": "Grüße, Ωmega ΣΑΣ 日本語 🦊 ß ŉ",
    "quotes": "it's \"quoted\" \\ back\tslash\u0001\u00a0\u200b\u007f",
    "html": "<a href='x'>&amp;</a>",
    "zero": 0, "one": 1, "seven": 7, "minus": -7, "big": 4611686018427387904, "half": 0.5, "pi": 3.14159,
    "tiny": 1e-7, "huge": 1e22, "whole": 2.0, "yes": True, "no": False, "nothing": None,
    "numbers": [3, 1, 2, 10, 2], "words": ["pear", "Apple", "fig", "apple"], "nested": [[1, 2], [3, [4, 5]], []],
    "mixed": [1, "a", None, True, 2.5, [], {}],
    "person": {"name": "Ada", "age": 36, "tags": ["x", "y"], "items": "shadow", "address": {"city": "London"}},
    "people": [{"name": "Ada", "age": 36, "ok": True}, {"name": "bob", "age": 7, "ok": False},
               {"name": "Cy", "age": 36}],
    "keys": {"b": 1, "a": 2, "C": 3}, "odd_keys": {"": 1, "a b": 2, "x-y": [1]},
    "schema": {"type": "object", "properties": {"city": {"type": "string", "enum": ["a", "b"]}}, "required": ["city"]},
}

EXPRESSIONS = {
    "literals": r"""
1 || 0 || 00 || 1_000 || 1.5 || 1e3 || 1.5e-7 || 1e22 || 1E5 || 123456789012345680.0 || 0.1 + 0.2 || 1e16 || 1e15 || 100000.0 * 1000000
true || True || false || False || none || None || 'a' || "b" || 'a' 'b' "c" || 'it\'s' || "say \"x\"" || '\n|\t|\\|\x41|\u00e9|\U0001F98A|\101|\q'
[] || [1] || [1, 2,] || [1, 'a', none, true, 1.5] || {} || {'a': 1} || {'a': 1, 'b': [1, {'c': none}],} || {1: 'x', none: 'y', true: 'z'}
() || (1,) || (1, 2) || 1, 2 || (1) || ((1, 2), 3) || ['it\'s'] || ["a\"b'c"] || ['\n\t\\', '\x00\x7f', 'é', '\u200b', '🦊']
""",
    "numbers": r"""
1 + 2 || 7 - 10 || 3 * 4 || 7 / 2 || 6 / 3 || 7 // 2 || -7 // 2 || 7 // -2 || 7 % 3 || -7 % 3 || 7 % -3 || 2 ** 10 || 2 ** -1 || 2 ** 0.5 || -2 ** 2
7.5 // 2 || -7.5 // 2 || 7.5 % 2 || -7.5 % 2 || 7.5 % -2 || 1 + 2.5 || 1.0 + 1 || 10 / 4 * 2 || 2 + 3 * 4 || (2 + 3) * 4 || 2 * 3 ** 2 || 10 - 2 - 3
1 / 0 || 1 // 0 || 1 % 0 || 1.0 / 0 || 0.0 ** -1 || true + true || true * 3 || +5 || -5 || - -5 || +true || -half || minus || big + 1 || 0.1 * 3 || 1e308 * 10 || -1e308 * 10
1 ~ 2 || 'a' ~ 1 ~ none ~ true || 1 + 2 ~ 3 + 4 || 1.0 ~ '' || name ~ missing || [1] ~ 'a' || half ~ pi ~ tiny ~ huge ~ whole
'a' + 'b' || 'a' * 3 || 3 * 'ab' || 'a' * 0 || 'a' * -1 || [1] + [2] || [1, 2] * 2 || (1,) + (2,) || 'a' + 1 || 1 + 'a' || [1] + (2,) || none + 1 || missing + 1 || {} + {}
seven // half || 5 // 0.3 || 1e20 // 3 || 5 % 0.3 || 3 ** 3 ** 2 || 2 ** 3 ** 2
""",
    "comparisons": r"""
1 == 1 || 1 == 1.0 || 1 == true || 0 == false || 'a' == 'a' || 'a' == 'b' || 1 == '1' || none == none || none == false || [] == [] || [1, 2] == [1, 2] || [1] == (1,) || {'a': 1} == {'a': 1.0} || missing == none || missing == missing2
1 != 2 || 'a' != 'a' || 1 < 2 || 2 < 1 || 1 <= 1 || 2 >= 3 || 2 > 1 || 'a' < 'b' || 'Z' < 'a' || 'a' < 'ab' || [1, 2] < [1, 3] || [1] < [1, 0] || 1 < 2.5 || 1 < 2 < 3 || 1 < 3 < 2 || 3 > 2 > 1 > 0 || 1 == 1 == 1 || 1 < 2 == 2
1 < 'a' || none < 1 || [] < {} || missing < 1 || 'é' > 'z' || big < huge || big == 4611686018427387904.0 || seven >= 7.0
1 in [1, 2] || 3 in [1, 2] || 'a' in 'cat' || '' in 'cat' || 'x' in 'cat' || 'name' in person || 'nope' in person || 1 in (1, 2) || 3 not in [1] || 'a' not in 'cat' || 1 in 'cat' || 1 in none || 'a' in missing || [1] in [[1]] || none in mixed || missing in [1] || 2 in range(3)
not true || not 0 || not '' || not [] || not none || not missing || not not 1 || not 1 == 2 || not 1 in [1] || true and false || true or false || 1 and 2 || 0 and 2 || 0 or 'x' || '' or none || none and missing.x || 1 or missing.x || 1 and 0 or 3 || 0 or 1 and 2
'a' if true else 'b' || 'a' if false else 'b' || 'a' if false || 1 if 0 else 2 if 0 else 3 || (1 if 1 else 2) + 3 || 'x' if missing else 'y' || 1 if 1 if 0 else 1 else 2
""",
    "members": r"""
person.name || person['name'] || person.nope || person['nope'] || person.nope.x || person.nope['x'] || person.address.city || person['address']['city'] || person.tags[0] || person.tags[-1] || person.tags[5] || person.tags['x'] || person.tags.0 || person.items || person['items'] || person.get('name') || person.get('nope') || person.get('nope', 'd') || missing || missing.x || missing['x'] || nothing.x || name.nope || name[0] || name[-1] || name[99] || name['x'] || seven.x || odd_keys[''] || odd_keys['a b'] || odd_keys['x-y'][0]
unicode[0:6] || unicode[2] || unicode[-1] || unicode[::-1] || name[1:3] || name[:2] || name[2:] || name[:-1] || name[::2] || name[::-1] || name[10:] || name[3:1] || name[-3:-1] || name[1:4:2] || name[4:1:-1] || name[::-2] || name[:] || name[none:2]
numbers[1:3] || numbers[::-1] || numbers[-2:] || numbers[:0] || numbers[1:-1] || numbers[5:1:-2] || numbers[::0] || numbers['a':] || (1, 2, 3)[1:] || range(10)[2:5] || person[1:2] || nothing[1:] || missing[1:] || numbers[100] || numbers[-100] || numbers[true] || numbers[1.0] || nested[1][1][0]
person.keys() || person.values() | list || keys.items() || keys.items() | list || keys.items() | length || keys.keys() | first || keys.values() | sum || keys.items()[0] || keys.copy() || keys.pop('b') || numbers.append(1) || numbers.index(10) || numbers.count(2) || numbers.index(99) || person.update || keys.items || keys.get || person.__class__
(keys.items() | list)[0][1] || dict(a=1, b=2) || dict([('x', 1)]) || dict({'a': 1}, b=2) || namespace(a=1).a || namespace(a=1).b || namespace({'q': 2}).q || range(3) || range(1, 7, 2) | list || range(5, 0, -2) | list || range(0) | list || range(3) | length || range(3)[1] || range() || range(1, 2, 0) || range(1.5) || range('a') || range(100001)
""",
    "methods": r"""
text.strip() || text.lstrip() || text.rstrip() || 'xxaxx'.strip('x') || 'abcba'.strip('ab') || 'abcba'.lstrip('ab') || 'abcba'.rstrip('ab') || '\n a\u00a0\u2003'.strip() || ''.strip() || '   '.strip() || 'éaé'.strip('é') || 'a'.strip(none) || 'a'.strip(1)
'a,b,c'.split(',') || 'a,b,c'.split(',', 1) || 'a,b,c'.rsplit(',', 1) || 'abc'.split(',') || ''.split(',') || ''.split() || text.split() || text.split(none, 1) || text.rsplit(none, 1) || text.rsplit() || 'a  b'.split(' ') || 'a'.split('') || 'aXXbXXc'.split('XX') || 'a,b,c'.split(sep=',', maxsplit=1) || 'a</think>b</think>c'.split('</think>')[-1] || 'a,b,c'.rsplit(',') || ',a,'.split(',') || ' a b '.split(none, 0) || 'a b c'.rsplit(none, 0) || ' a b '.split(maxsplit=1)
'abc'.startswith('ab') || 'abc'.startswith('bc') || 'abc'.endswith('bc') || 'abc'.startswith('') || 'abc'.startswith(('x', 'a')) || 'abc'.startswith('b', 1) || 'abc'.endswith('b', 0, 2) || 'abc'.startswith(1) || 'abc'.startswith('', 4) || 'abc'.startswith(['a'])
name.upper() || name.lower() || 'hello wORLD'.title() || "they're bill's".title() || 'hello wORLD'.capitalize() || unicode.upper() || unicode.lower() || unicode.title() || 'ßa ŉb'.capitalize() || 'ΑΣ ΑΣ. Σ'.lower() || 'ǆ'.title() || 'İ'.lower() || 'ﬁn'.upper() || 'ﬁn'.title() || ''.upper() || 'a1b c-d'.title()
'banana'.replace('a', 'o') || 'banana'.replace('a', 'o', 1) || 'banana'.replace('', '-') || 'banana'.replace('', '-', 2) || ''.replace('', 'x') || 'aaa'.replace('aa', 'b') || 'a'.replace('b', 'c') || 'a'.replace(1, 2) || 'é'.replace('', '.')
'banana'.find('an') || 'banana'.rfind('an') || 'banana'.find('x') || 'banana'.find('an', 2) || 'banana'.find('an', 2, 4) || 'ébanana'.find('an') || 'banana'.index('n') || 'banana'.index('x') || 'banana'.rindex('a') || 'banana'.count('a') || 'banana'.count('an') || 'banana'.count('') || 'banana'.find('') || 'banana'.find('', 7)
', '.join(['a', 'b']) || ''.join([]) || '-'.join('abc') || ','.join([1]) || ','.join(person) || 'a-b'.partition('-') || 'ab'.partition('-') || 'a-b-c'.rpartition('-') || 'ab'.rpartition('-') || 'prefix-x'.removeprefix('prefix-') || 'x.jinja'.removesuffix('.jinja') || 'x'.removeprefix('y')
'a'.ljust(3, '.') || 'a'.rjust(3) || 'a'.center(4, '*') || 'ab'.center(5, '*') || 'abc'.center(2) || '{} and {}'.format('a', 1) || '{0}{1}{0}'.format('a', 'b') || '{x}'.format(x=1) || '{{}}'.format() || '{}'.format() || '{'.format(1) || lines.splitlines() || lines.splitlines(true) || 'a\u2028b\x0bc'.splitlines() || ''.splitlines()
'ABC'.isupper() || 'AbC'.isupper() || 'abc1'.islower() || '1'.islower() || 'abc'.isalpha() || 'abc1'.isalpha() || '12'.isdigit() || '1a'.isdigit() || 'a1'.isalnum() || 'a 1'.isalnum() || ' \t'.isspace() || ''.isspace() || 'é'.isalpha() || '²'.isdigit() || ''.isalpha()
""",
    "filters": r"""
name | upper || name | lower || 'hello world-wide (web)' | title || "it's" | title || 'hELLO' | capitalize || text | trim || 'xxax' | trim('x') || 12 | string || none | string || [1] | string || missing | string || missing | upper || 5 | upper || true | lower
name | length || numbers | length || person | length || missing | length || unicode | length || 5 | length || none | length || numbers | count || numbers | first || numbers | last || [] | first || [] | last || 'abc' | first || 'abc' | last || person | first || person | last || missing | first || missing | last || none | first
missing | default('d') || none | default('d') || none | default('d', true) || '' | default('d', true) || missing | d || missing | default || 0 | default(5, boolean=true) || name | default('d') || person.nope | default('x') || missing.x | default('x') || missing | default(default_value='q')
'banana' | replace('a', 'o') || 'banana' | replace('a', 'o', 1) || 5 | replace('5', '6') || 'a1' | replace(1, 2) || missing | replace('a', 'b') || 'a' | replace('a')
['a', 'b'] | join || ['a', 'b'] | join(', ') || [1, none, true, 1.5] | join('|') || people | join(', ', attribute='name') || 'abc' | join('-') || person | join(',') || missing | join || 5 | join || ['a', missing] | join('-') || words | join(d=' ')
numbers | list || 'abc' | list || person | list || missing | list || none | list || range(3) | list || (1, 2) | list || keys.items() | list || keys | items | list || missing | items | list || 'a' | items || keys | dictsort || keys | dictsort(true) || keys | dictsort(by='value') || keys | dictsort(reverse=true) || keys | dictsort(by='x') || 5 | dictsort
numbers | sort || numbers | sort(reverse=true) || words | sort || words | sort(case_sensitive=true) || people | sort(attribute='age') | map(attribute='name') | list || people | sort(attribute='name') | map(attribute='name') | join(',') || mixed | sort || 'hello' | sort | join || numbers | unique | list || words | unique | list || words | unique(case_sensitive=true) | list || people | unique(attribute='age') | map(attribute='name') | list || nested | unique | list || missing | sort
numbers | reverse | list || 'abc' | reverse || numbers | reverse || person | reverse | list || 5 | reverse || numbers | min || numbers | max || words | min || words | max || [] | min || people | max(attribute='age') || people | min(attribute='name') || mixed | max || words | min(case_sensitive=true)
numbers | sum || [] | sum || people | sum(attribute='age') || [0.5, 1] | sum || ['a'] | sum || [[1], [2]] | sum(start=[]) || numbers | sum(start=10) || missing | sum || ('12' | int) + 1 || ' 12 ' | int || '12.7' | int || 'x' | int || 'x' | int(5) || 12.7 | int || -12.7 | int || none | int || true | int || '1_000' | int || '-5' | int || '1e3' | int || missing | int || [] | int
'1.5' | float || 'x' | float || 'x' | float(2.5) || 3 | float || none | float || 'inf' | float || 'nan' | float || '1e3' | float || missing | float || 42.55 | round || 42.55 | round(1) || 42.55 | round(1, 'floor') || 42.45 | round(1, 'ceil') || 2.5 | round || 3.5 | round || 42 | round || 42.123456 | round(3) || 42 | round(1, 'floor') || 1 | round(0, 'x') || 'a' | round || -5 | abs || -5.5 | abs || 'a' | abs || true | abs
people | map(attribute='name') | list || people | map(attribute='ok') | list || people | map(attribute='ok', default='?') | list || words | map('upper') | list || words | map('replace', 'p', 'P') | list || numbers | map('string') | join || [1.5, 2.5] | map('int') | list || people | map('length') | list || words | map | list || people | map(attribute='name') | length || people | map(attribute='name') | first || people | map(attribute='name') || nested | map('first') | list || [person] | map(attribute='address.city') | list || nested | map(attribute=0) | list || [['a']] | map(attribute='0') | list
people | selectattr('ok') | map(attribute='name') | list || people | rejectattr('ok') | map(attribute='name') | list || people | selectattr('age', 'equalto', 36) | list | length || people | selectattr('age', '>', 10) | map(attribute='name') | list || people | selectattr('ok', 'defined') | map(attribute='name') | list || people | rejectattr('name', 'in', ['Ada']) | map(attribute='name') | list || numbers | select('odd') | list || numbers | reject('odd') | list || mixed | select | list || mixed | reject | list || mixed | select('string') | list || [] | select('odd') | list || missing | select | list || numbers | select('divisibleby', 5) | list || people | selectattr | list || people | selectattr('name', 'eq', 'Ada') | first || people | selectattr('age') | length || words | select('in', 'figapple') | list || people | selectattr('x.y') | list
'a\nb\n\nc' | indent || 'a\nb' | indent(2) || 'a\nb' | indent(2, true) || 'a\n\nb' | indent(2, blank=true) || 'a\nb' | indent('> ') || 'a\nb\n' | indent || '' | indent || 5 | indent || html | safe || html | safe | upper || 5 | safe || (html | safe) + html || html + (html | safe) + '<' || html | e || html | escape | e || (html | safe) ~ html || 5 | e || html | e + 'x' || (html | safe) + 5 || (html | safe | trim) + '&'
""",
    "tojson": r"""
person | tojson || people | tojson || unicode | tojson || unicode | tojson(ensure_ascii=true) || quotes | tojson || html | tojson || none | tojson || true | tojson || 1 | tojson || 1.0 | tojson || tiny | tojson || huge | tojson || mixed | tojson || [] | tojson || {} | tojson || missing | tojson || range(3) | tojson || (1, 2) | tojson || keys.items() | tojson || 'inf' | float | tojson || 'nan' | float | tojson || -1e400 | tojson
person | tojson(indent=2) || person | tojson(indent=4) || [] | tojson(indent=2) || {'a': {}, 'b': []} | tojson(indent=2) || [1, [2, [3]]] | tojson(indent=1) || {'a': 1} | tojson(indent=0) || {'a': [1]} | tojson(indent='--') || {'a': 1} | tojson(none) || keys | tojson(sort_keys=true) || keys | tojson(separators=(',', ':')) || [1, 2] | tojson(separators=(' ; ', '=')) || [1, 2] | tojson(indent=2, separators=(', ', ': ')) || schema | tojson || {1: 2, none: 3, true: 4, 1.5: 5} | tojson || {(1, 2): 3} | tojson || [missing] | tojson || schema | tojson(indent=4) || {'b': 1, 1: 2} | tojson(sort_keys=true) || schema | tojson | length || schema | string || namespace(a=1) | tojson
""",
    "tests": r"""
name is defined || missing is defined || missing is not defined || missing is undefined || none is none || name is none || nothing is none || missing is none || nothing is not none || person.nope is defined || person.nope is none
name is string || 5 is string || missing is string || person is mapping || name is mapping || numbers is mapping || numbers is sequence || name is sequence || person is sequence || 5 is sequence || missing is sequence || keys.items() is sequence || range(3) is sequence || numbers is iterable || name is iterable || 5 is iterable || missing is iterable || none is iterable || numbers | map('string') is iterable || (numbers | map('string')) is sequence
5 is number || 5.5 is number || true is number || 'a' is number || 5 is integer || true is integer || 5.0 is integer || 5.5 is float || 5 is float || true is boolean || 1 is boolean || true is true || 1 is true || false is false || none is false || range is callable || name is callable || name.upper is callable
3 is odd || 4 is even || 3 is even || 'a' is odd || 6 is divisibleby 3 || 6 is divisibleby(4) || 'ABC' is upper || 'abc' is lower || 'a' is in 'abc' || 1 is in [1] || 1 is not in [1] || 1 is eq 1 || 1 is equalto 1.0 || 1 is ne 2 || 2 is gt 1 || 2 is lt 1 || 2 is ge 2 || 2 is le 1 || 1 is greaterthan 0 || 1 is lessthan 0 || none is sameas none || true is sameas true || 1 is sameas true
name is defined and name is string || not name is none || name is not string or 1 || name is string is string || 5 is divisibleby || name is defined(1) || name is eq || (1 is odd) ~ 'x' || 1 is odd ~ 'x' || 4 is divisibleby 2 and true || name is string if yes else 1
""",
    "calls": r"""
nope() || name() || person() || 5() || person.get() || person.get('name', 1, 2) || name.upper(1) || 'a'.replace('a', 'b', count=1) || range(*[1, 5, 2]) | list || dict(**{'a': 1}) || dict(*[[('a', 1)]]) || 'a,b'.split(*[',']) || strftime_now('%Y-%m-%d') || strftime_now('%d %b %Y') || strftime_now('%B %d, %Y') || strftime_now('%H:%M:%S %A %a %j %p %I') || strftime_now('%-d %e|%y') || strftime_now('no %% conv') || strftime_now() || raise_exception('stop: ' ~ name) || raise_exception() || raise_exception('line\nbreak') || name | nofilter || name is notest || 1 | default(2) | string || [1, 2] | join(',') | upper
""",
    "syntax": r"""
1 + || (1 || [1 || {1 || {1: } || 1 2 || a.b. || a. || .a || a[ || a[1:2:3:4] || a['x' || 'a || "a || a | || a is || not || 1 if || 1 if else 2 || f(a=1, 2) || f(**a, b) || f(a, || 1 ! 2 || a = 1 || $ || a ? b : c || ) || ] || 1 == || == 1 || a and || or b || @ || `a` || 1..2 || a..b || * || {} {} || a.1.2 || [1,,2] || {,} || (,) || f(,) || 'a' b || a not b || a not in || lambda x: x || a; b || a:b
""",
    "printing": r"""
half || whole || tiny || huge || pi || big || 1e100 || 1.0e-5 || 0.0001 || 123456.789 || -0.0 || 5e-324 || 1.7976931348623157e308 || 0.1 || 1/3 || 2/3 || 100.0 || 1e21 || 12345678901234567.0 || [0.1, 1e16, 1e-5] || quotes || [quotes] || [unicode] || mixed || nested || person || people || keys.keys() || keys.values() || [none, true] || (none,) || {'a': 'b\'c'} || ['"', "'", '\'"'] || [missing] || ['\ud7ff', '\ue000', '\ufffe', '\U000e0001'] || ['\x80\x9f\xa0\xad'] || namespace(a=1, b='x') || 'a\x00b' || [1, [2, (3, [])], {}]
""",
}

STATEMENTS = [
    # white space
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}x{% endif %}\n  y", "a  {%- if true -%}  b  {%- endif -%}  c",
    "{{ 1 }}\n{{ 2 }}\n", "{{- 1 -}}\n {{- 2 }} \n", "a {# comment #}\nb", "a {#- comment -#}\n b", "  {# x #}\n  y", "a\n\n", "\n", "", "\n\n{% if 1 %}\n\n{% endif %}\n",
    "{%+ if true %}\n x{% endif +%}\ny", "  {%+ if true %}x{% endif %}", "{% if true +%}\nx{% endif %}", "a\r\nb\rc\n", "{% if 1 %}\r\nx{% endif %}", "x{{ 'a\r\nb' }}y",
    "{% raw %}{{ x }} {% if %}{% endraw %}", "{%- raw -%}  {{ x }}  {%- endraw -%} y", "a\n  {% raw %}\n b {{ }}\n  {% endraw %}\nc", "{% raw %}x{%- endraw %}\n y",
    "{{ '{{' }}{{ '}}' }}{{ '{%' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {}} }}", "{ { x } }", "{%if true%}x{%endif%}", "{{'a'}}{{\n'b'\n}}",
    "\t {% if 1 %}\n\t x\n\t {% endif %}\t\n", "a{% if 1 %} \nb{% endif %}", "{# a #}{# b #}\n\nc", "x {#-#} y", "x {# - #} y", "{#\n{{ bad\n#}z", "{{ 1 }} \n {%- if 1 %} a{% endif %}",
    "\u00a0{% if 1 %}a{% endif %}\u00a0{%- if 1 %}b{% endif %}", "{% set x = 1 %}\n{{ x }}\n{% set y = 2 -%}\n {{ y }}", "a{{ 1 -}}\n\n\nb", "a\n\n\n{{- 1 }}b",
    # if
    "{% if zero %}a{% elif one %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% elif 0 %}c{% else %}d{% endif %}", "{% if 0 %}a{% endif %}-", "{% if 1 %}{% if 0 %}a{% else %}b{% endif %}{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}", "{% if missing.x %}a{% endif %}", "{% if 1, 2 %}t{% endif %}", "{% if name == 'World' and one %}y{% endif %}",
    # for
    "{% for x in numbers %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in missing %}a{% else %}none{% endfor %}", "{% for x in nothing %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}",
    "{% for k, v in person.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in person %}{{ k }} {% endfor %}", "{% for c in 'aé🦊' %}{{ c }}.{% endfor %}", "{% for a, b in nested %}{{ a }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in numbers %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.depth }} {{ loop.depth0 }};{% endfor %}",
    "{% for x in numbers %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in numbers %}{{ loop.previtem is defined }} {% endfor %}", "{% for x in numbers %}{{ loop.previtem.y }}{% endfor %}",
    "{% for x in numbers if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}", "{% for x in numbers if x > 100 %}a{% else %}e{% endfor %}", "{% for p in people if p.ok %}{{ p.name }}{% endfor %}", "{% for x in numbers %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in numbers %}{% for y in 'ab' %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for x in numbers %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in numbers %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in [1, 2] %}{% for y in [1, 2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in numbers | sort | reverse %}{{ x }}{% endfor %}", "{% for x in numbers[::-1] %}{{ x }}{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{{ loop }}", "{% for x in [1] %}{{ loop }}{% endfor %}", "{% for x in [1, 2] %}{{ x }}{% endfor %}{{ x }}", "{% for loop in [1] %}{{ loop }}{% endfor %}",
    "{% set g = people | map(attribute='name') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}", "{% for x in numbers %}{{ x }}{{ ', ' if not loop.last }}{% endfor %}", "{% for m in people %}{% if (m.age > 10) != (loop.index0 % 2 == 0) %}{{ raise_exception('order ' ~ loop.index) }}{% endif %}{% endfor %}", "{% for k, v in keys | dictsort %}{{ k }}{{ v }}{% endfor %}", "{% for k, v in keys | items %}{{ k }}{{ v }}{% endfor %}",
    "{% for x in [3] %}{% set name = x %}{{ name }}{% endfor %}{{ name }}", "{% for x in [1, 2, 3] %}{% if loop.first %}{% set z = 'first' %}{% endif %}{{ z }}.{% endfor %}", "{% for x in [1] %}{{ x }}{% else %}e{% endfor %}{{ loop is defined }}",
    # set, scopes
    "{% set x = 1 %}{{ x }}", "{% set x = 1, 2 %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a, b = [1, 2, 3] %}", "{% set (a, b) = 'xy' %}{{ a }}{{ b }}", "{% if 1 %}{% set x = 5 %}{% endif %}{{ x }}", "{% if 0 %}{% set name = 5 %}{% endif %}{{ name }}", "{% if 0 %}{% set x = 5 %}{% endif %}{{ x }}|{{ x is defined }}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a = 'b' %}{{ ns.a }}{{ ns.b }}", "{% set person.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace(a=1) %}{{ ns['a'] }}", "{% set x %}block {{ name }}{% endset %}[{{ x }}]", "{% set x | upper %}block {{ name }}{% endset %}[{{ x }}]", "{% set x | replace('b', 'c') | trim %}  block  {% endset %}[{{ x }}]", "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}", "{% set true = 1 %}", "{% set x.y.z = 1 %}", "{% set 1 = 2 %}", "{% set x %}", "{% set x = %}",
    "{% set name = name ~ '!' %}{{ name }}", "{% set ns = namespace(l=[]) %}{% for x in numbers %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}", "{% with %}{% set w = 1 %}{{ w }}{% endwith %}{{ w }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% with a = 1 %}{% with a = a + 1 %}{{ a }}{% endwith %}{{ a }}{% endwith %}", "{% filter upper %}a {{ name }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}banana{% endfilter %}", "{% filter trim %}  x  {% endfilter %}!",
    # macros
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }}", "{% macro m(a) %}x{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}x{% endmacro %}{{ m(z=2) }}", "{% macro m(a) %}x{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(7) }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro m() %}{{ name }}{% endmacro %}{% set name = 'late' %}{{ m() }}", "{% macro m() %}{% set inner = 1 %}{{ inner }}{% endmacro %}{{ m() }}{{ inner }}", "{% macro m(name) %}{{ name }}{% endmacro %}{{ m('p') }}{{ name }}", "{% macro m(x) %} {{ x }} {% endmacro %}[{{ m('a') | trim }}]", "{{ early() }}{% macro early() %}x{% endmacro %}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body {{ name }}{% endcall %}", "{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% for x in [1, 2] %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}", "{% macro m(l) %}{% for x in l %}{% if x is iterable and x is not string %}[{{ m(x) }}]{% else %}{{ x }}{% endif %}{% endfor %}{% endmacro %}{{ m(nested) }}", "{% macro m %}x{% endmacro %}", "{% macro m(a=1, b) %}x{% endmacro %}", "{% macro m() %}x", "{{ m.name }}{% macro m() %}{% endmacro %}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m(a=none) %}{{ a }}{% endmacro %}{{ m() }}",
    "{%- macro m(a) -%}\n  {{- a -}}\n{%- endmacro -%}\n[{{ m('x') }}]",
    # generation, other tags, errors
    "{% generation %}a{{ name }}{% endgeneration %}b", "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q }}", "{%- generation -%}  x  {%- endgeneration -%}  y", "{% if 1 %}", "{% endif %}", "{% for x in y %}", "{% else %}", "{% nope %}", "{% if %}x{% endif %}", "{% for in x %}{% endfor %}", "{% for x y %}{% endfor %}", "{{", "{{ 1", "{%", "{% if 1", "{#", "{% raw %}", "{{ 1 %}", "{% if 1 }}", "{% break %}", "{% for x in [1] %}{% endfor %}{% continue %}", "{% if 1 %}{% endfor %}", "{% %}", "{{ }}", "{{}}", "{% macro m() %}{% break %}{% endmacro %}", "}} %} #}", "{{ 1 }}}", "{{{ 1 }}}", "{{ raise_exception('no') }}", "a{% if 1 %}{{ raise_exception(unicode) }}{% endif %}", "{% for a in [1] %}{% block x %}{% endblock %}{% endfor %}{% endblock %}", "{% call name %}{% endcall %}", "{% with 1 %}{% endwith %}", "{% set x = 1 %}{% set x = x + 1 %}{% set x = x * x %}{{ x }}",
    "{% set messages = [{'role': 'user', 'content': 'hi'}] %}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + '<|end|>' }}{% endfor %}", "{% set x = namespace(n=0) %}{% for i in range(10) if i is even %}{% set x.n = x.n + i %}{% endfor %}{{ x.n }}", "{{ 'a' if one and zero or not yes else 'b' }}", "{{ [name, empty] | select | join('-') }}", "{{ (people | first).name }}", "{{ people[0]['name'] + ' ' + people[-1].name }}", "{{ people | map(attribute='name') | map('lower') | sort | join(', ') }}", "{{ text.split()[-1][::-1].upper() | replace('S', '$') }}", "{{ 'x' * (loop.index if loop is defined else 2) }}",
]


def _snippets():
    for group, block in EXPRESSIONS.items():
        for line in block.strip().split("\n"):
            for expression in line.split("||"):
                yield group, "{{ " + expression.strip() + " }}"
    for source in STATEMENTS:
        yield "statements", source


SNIPPETS = list(_snippets())
