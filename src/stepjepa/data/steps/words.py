"""The words that the step splitters know, one table by use. A new language is a word or two in each row."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TABLE = """
step: step, schritt, étape, etape, paso, passo, passaggio, etapa, krok, adım, adim, stap, steg, trin, vaihe, langkah, tahap,
    bước, pas, lépés, korak, skref, шаг, крок, стъпка, корак, этап, етап, βήμα, שלב, خطوة, الخطوة, المرحلة, گام, مرحله,
    चरण, कदम, ধাপ, படி, దశ, ขั้นตอนที่, ขั้นที่, ნაბიჯი, քայլ, 步骤, 步驟, ステップ, 手順, 단계
ordinal: first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, last, final, erster, zweiter, dritter,
    premier, première, premiere, deuxième, second, seconde, troisième, dernière, primer, primero, segundo, tercer, tercero,
    último, primeiro, terceiro, primo, secondo, terzo, ultimo, первый, второй, третий, pierwszy, drugi, trzeci
number: one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve
first: first, firstly, first of all, first off, to begin, to begin with, to start, to start with, initially,
    zuerst, zunächst, erstens, als erstes, am anfang, d'abord, tout d'abord, premièrement, en premier lieu, pour commencer,
    primero, primeramente, en primer lugar, para empezar, primeiro, primeiramente, em primeiro lugar, para começar,
    prima, prima di tutto, innanzitutto, anzitutto, per prima cosa, in primo luogo, сначала, во-первых, прежде всего,
    для начала, спочатку, по-перше, najpierw, po pierwsze, ilk olarak, önce, öncelikle, birincisi, eerst, ten eerste,
    allereerst, först, för det första, pertama, pertama-tama, đầu tiên, trước hết, trước tiên, أولاً, أولا, في البداية,
    सबसे पहले, पहले
next: second, secondly, third, thirdly, fourth, fourthly, fifth, next, next up, then, after that, after this, afterwards,
    afterward, subsequently, following this, following that, from there, now, dann, danach, als nächstes, anschließend, nun,
    zweitens, drittens, viertens, ensuite, puis, après, après cela, deuxièmement, troisièmement, luego, después,
    a continuación, segundo, tercero, en segundo lugar, depois, em seguida, então, terceiro, em segundo lugar, poi, quindi,
    dopo, dopodiché, successivamente, in secondo luogo, затем, далее, потом, после этого, теперь, во-вторых, в-третьих,
    потім, далі, по-друге, następnie, potem, po drugie, po trzecie, sonra, daha sonra, ardından, ikinci olarak, vervolgens,
    daarna, dan, ten tweede, ten derde, sedan, därefter, för det andra, kemudian, lalu, selanjutnya, kedua, ketiga,
    tiếp theo, sau đó, thứ hai, ثم, بعد ذلك, ثانياً, ثانيا, ثالثاً, फिर, उसके बाद, इसके बाद
last: finally, lastly, last, last of all, in the end, at last, schließlich, zuletzt, zum schluss, abschließend, am ende,
    enfin, finalement, pour finir, en dernier lieu, finalmente, por último, por fin, para terminar, por fim,
    infine, alla fine, per ultimo, наконец, в конце, нарешті, wreszcie, na koniec, w końcu, son olarak, en son,
    ten slotte, tot slot, uiteindelijk, slutligen, till sist, akhirnya, terakhir, cuối cùng, أخيراً, أخيرا, في النهاية,
    अंत में, आखिर में
unspaced: 首先, 第一*, まず, 最初に, はじめに, 먼저, 우선, 첫째, 첫 번째로
unspaced next: 其次, 然后, 然後, 接着, 接下来, 接下來, 随后, 隨後, 再*, 再来, 第二*, 第三*,
    次に, つぎに, 続いて, それから, その後, そして,
    다음으로, 그다음, 그 다음, 그런 다음, 이어서, 둘째, 셋째, 두 번째로, 세 번째로,
    最后, 最後, 最终, 最終的に, 마지막으로, 끝으로
answer: final answer, answer, conclusion, summary, result, antwort, endergebnis, fazit, réponse, réponse finale,
    respuesta, respuesta final, conclusión, resposta, resposta final, conclusão, risposta, risposta finale, conclusione,
    ответ, вывод, відповідь, odpowiedź, cevap, sonuç, antwoord, svar, jawaban, đáp số, đáp án, kết luận,
    最终答案, 答案, 结论, 答, 最終的な答え, 答え, 結論, 정답, 답, 결론, الجواب, الإجابة, उत्तर
ending: in conclusion, to conclude, in summary, to summarize, to summarise, putting it all together
so: therefore, thus, hence, so, consequently, accordingly, as a result, altogether, overall, in total, finally,
    daher, somit, folglich, insgesamt, donc, ainsi, par conséquent, por tanto, por lo tanto, así, portanto, logo, assim,
    quindi, dunque, pertanto, следовательно, поэтому, таким образом, итак, значит, отже, zatem, więc,
    dolayısıyla, bu nedenle, dus, alltså, vậy, jadi, لذلك, إذن, अतः, इसलिए
unspaced so: ∴, 因此, 所以, 综上, 故, よって, したがって, ゆえに, 따라서, 그러므로
abbreviation: dr, mr, mrs, ms, prof, st, sr, jr, vs, e.g, i.e, eg, ie, cf, ca, approx, resp, al, incl, excl, z.b, u.a, d.h,
    bzw, vgl, evtl, inkl, p.ex, ex, mme, mlle, sra, dña, ud, uds, т.е
before numbers: no, nos, nr, fig, figs, eq, eqs, sec, ch, vol, p, pp, pt, art, abb, tab, ref, refs, рис, стр, núm
"""
# step: as in "Step 3:", "3. Schritt:", "第三步"; ordinal: "First step:"; number: "Step one:". Paragraphs that open with
# `first`, `next` or `last` are the steps of ``connectives``; `unspaced` are those of scripts without spaces between words,
# where no comma has to follow (a star is one). `answer` labels an answer; `ending` and `so` open a conclusion. A full stop
# after an `abbreviation` ends no sentence; after the last row, none where a number follows.
WORDS = {
    use: list(dict.fromkeys(" ".join(word.split()) for word in words.split(",")))
    for use, words in (row.split(":") for row in re.split(r"\n(?=[^\s])", _TABLE.strip()))
}


def either(use: str) -> str:
    """A pattern for any of the words of a row; longer ones first."""
    return "|".join(re.escape(word) for word in sorted(WORDS[use], key=len, reverse=True))


def first_letters(words: Iterable[str]) -> str:
    """A pattern for the first two letters of words that start with an ASCII letter; others are let through."""
    pairs: dict[str, str] = {}
    for word in words:
        if word[0].isascii():
            pairs[word[0]] = pairs.get(word[0], "") + word[1:2].lower() + word[1:2].upper()
    return "|".join(f"[{first}{first.upper()}][{re.escape(second)}]" for first, second in pairs.items())
