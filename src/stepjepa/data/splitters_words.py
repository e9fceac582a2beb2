"""The words that the step splitters know, by language. A new language needs a line in each table, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable


def either(words: str) -> str:
    """A pattern for any of the words, which are separated by commas; longer ones first."""
    return "|".join(re.escape(word) for word in sorted(split(words), key=len, reverse=True))


def split(words: str) -> list[str]:
    """The words of a table, each once."""
    return list(dict.fromkeys(" ".join(word.split()) for word in words.split(",") if word.strip()))


def first_letters(words: Iterable[str]) -> str:
    """A pattern for the first two letters of words that start with an ASCII letter; others are let through."""
    pairs: dict[str, str] = {}
    for word in words:
        if word[0].isascii():
            pairs[word[0]] = pairs.get(word[0], "") + word[1:2].lower() + word[1:2].upper()
    return "|".join(f"[{first}{first.upper()}][{re.escape(second)}]" for first, second in pairs.items())


# "Step" as in "Step 3:", "3. Schritt:", "第三步".
STEP = """
    step, schritt, étape, etape, paso, passo, passaggio, etapa, krok, adım, adim, stap, steg, trin, vaihe, langkah, tahap,
    bước, pas, pasul, lépés, korak, žingsnis, solis, samm, skref, hakbang, hatua,
    шаг, крок, стъпка, корак, этап, етап, βήμα, שלב, خطوة, الخطوة, المرحلة, گام, مرحله, مرحلہ,
    चरण, कदम, ধাপ, படி, దశ, ขั้นตอนที่, ขั้นที่, ნაბიჯი, քայլ, 步骤, 步驟, ステップ, 手順, 단계
"""
# Before it: "First step:".
ORDINALS = """
    first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, last, final,
    erster, zweiter, dritter, vierter, fünfter, sechster, letzter,
    premier, première, premiere, deuxième, second, seconde, troisième, quatrième, cinquième, sixième, dernière,
    primer, primero, segundo, tercer, tercero, cuarto, quinto, sexto, último,
    primeiro, primeira, segunda, terceiro, terceira, quarto, quarta, quinta, sexta, última, primo, secondo, terzo, ultimo,
    первый, второй, третий, четвертый, четвёртый, пятый, шестой, последний, pierwszy, drugi, trzeci, czwarty, piąty,
    ilk, birinci, ikinci, üçüncü, dördüncü, beşinci, eerste, tweede, derde, vierde, vijfde
"""
# Behind it: "Step one:".
NUMBERS = "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve"
OTHER_NUMBERS = """
    uno, due, dos, tre, tres, cuatro, quattro, cinco, cinque, un, deux, trois, quatre, cinq, eins, zwei, drei, vier, fünf,
    um, dois, três, quatro, первый, второй, третий, четвертый, четвёртый, пятый,
    الأولى, الثانية, الثالثة, الرابعة, الخامسة, السادسة, الأخيرة, اول, دوم, سوم
"""

# Paragraphs that open with one of these are steps for `ConnectiveSplitter`; the first one has to be of the first table.
FIRST = """
    first, firstly, first of all, first off, to begin, to begin with, to start, to start with, initially,
    zuerst, zunächst, erstens, als erstes, am anfang, d'abord, tout d'abord, premièrement, en premier lieu, pour commencer,
    primero, primeramente, en primer lugar, para empezar, primeiro, primeiramente, em primeiro lugar, para começar,
    prima, prima di tutto, innanzitutto, anzitutto, per prima cosa, in primo luogo,
    сначала, во-первых, прежде всего, для начала, спочатку, по-перше, najpierw, po pierwsze,
    ilk olarak, önce, öncelikle, birincisi, eerst, ten eerste, allereerst, först, för det första,
    pertama, pertama-tama, đầu tiên, trước hết, trước tiên, أولاً, أولا, في البداية, सबसे पहले, पहले
"""
NEXT = """
    second, secondly, third, thirdly, fourth, fourthly, fifth, next, next up, then, after that, after this, afterwards,
    afterward, subsequently, following this, following that, from there, now,
    dann, danach, als nächstes, anschließend, nun, zweitens, drittens, viertens,
    ensuite, puis, après, après cela, deuxièmement, troisièmement,
    luego, después, a continuación, segundo, tercero, en segundo lugar,
    depois, em seguida, então, terceiro, em segundo lugar, poi, quindi, dopo, dopodiché, successivamente, in secondo luogo,
    затем, далее, потом, после этого, теперь, во-вторых, в-третьих, потім, далі, по-друге,
    następnie, potem, po drugie, po trzecie, sonra, daha sonra, ardından, ikinci olarak,
    vervolgens, daarna, dan, ten tweede, ten derde, sedan, därefter, för det andra,
    kemudian, lalu, selanjutnya, kedua, ketiga, tiếp theo, sau đó, thứ hai,
    ثم, بعد ذلك, ثانياً, ثانيا, ثالثاً, फिर, उसके बाद, इसके बाद
"""
LAST = """
    finally, lastly, last, last of all, in the end, at last, schließlich, zuletzt, zum schluss, abschließend, am ende,
    enfin, finalement, pour finir, en dernier lieu, finalmente, por último, por fin, para terminar, por fim,
    infine, alla fine, per ultimo, наконец, в конце, нарешті, wreszcie, na koniec, w końcu, son olarak, en son,
    ten slotte, tot slot, uiteindelijk, slutligen, till sist, akhirnya, terakhir, cuối cùng,
    أخيراً, أخيرا, في النهاية, अंत में, आखिर में
"""
# The same in scripts without spaces between words, where no comma has to follow. A star stands for a comma.
FIRST_CJK = "首先, 第一*, まず, 最初に, はじめに, 먼저, 우선, 첫째, 첫 번째로"
NEXT_CJK = """
    其次, 然后, 然後, 接着, 接下来, 接下來, 随后, 隨後, 再*, 再来, 第二*, 第三*,
    次に, つぎに, 続いて, それから, その後, そして,
    다음으로, 그다음, 그 다음, 그런 다음, 이어서, 둘째, 셋째, 두 번째로, 세 번째로
"""
LAST_CJK = "最后, 最後, 最终, 最終的に, 마지막으로, 끝으로"

# Labels of an answer, as in "Answer: 5".
ANSWER = """
    final answer, answer, conclusion, summary, result, antwort, endergebnis, fazit, réponse, réponse finale,
    respuesta, respuesta final, conclusión, resposta, resposta final, conclusão, risposta, risposta finale, conclusione,
    ответ, вывод, відповідь, odpowiedź, cevap, sonuç, antwoord, svar, jawaban, đáp số, đáp án, kết luận,
    最终答案, 答案, 结论, 答, 最終的な答え, 答え, 結論, 정답, 답, 결론, الجواب, الإجابة, उत्तर
"""
ENDING = "in conclusion, to conclude, in summary, to summarize, to summarise, putting it all together"
# Paragraphs that open with these draw a conclusion, or take leave.
SO = """
    therefore, thus, hence, so, consequently, accordingly, as a result, altogether, overall, in total, finally,
    daher, somit, folglich, insgesamt, donc, ainsi, par conséquent, por tanto, por lo tanto, así, portanto, logo, assim,
    quindi, dunque, pertanto, следовательно, поэтому, таким образом, итак, значит, отже, zatem, więc,
    dolayısıyla, bu nedenle, dus, alltså, vậy, jadi, لذلك, إذن, अतः, इसलिए
"""
SO_CJK = "∴, 因此, 所以, 综上, 故, よって, したがって, ゆえに, 따라서, 그러므로"
REMARK = "note, tip, remark, enjoy, i hope, hope this, let me know, feel free, good luck, if you have, if you need"

# A full stop behind these ends no sentence; behind those of the second table, none where a number follows.
ABBREVIATIONS = """
    dr, mr, mrs, ms, prof, st, sr, jr, vs, e.g, i.e, eg, ie, cf, ca, approx, resp, al, incl, excl, z.b, u.a, d.h, bzw, vgl,
    evtl, inkl, p.ex, ex, mme, mlle, sra, dña, ud, uds, т.е
"""
BEFORE_NUMBERS = "no, nos, nr, fig, figs, eq, eqs, sec, ch, vol, p, pp, pt, art, abb, tab, ref, refs, рис, стр, núm"
