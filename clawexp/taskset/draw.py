"""A seeded source of content for one task, from one split's words and numbers alone."""

import random
from collections.abc import Sequence

from clawexp.records import Split
from clawexp.taskset.words import Pool, half, split_of


class Draw:
    """Draws for one task: the same for the same split and key, and no word twice unless asked for.

    `Draw("train", "train/lookup/0-3-5").word("key")`
    """

    def __init__(self, split: Split, key: str) -> None:
        self.split: Split = split
        self.rng = random.Random(key)
        self._used: set[str] = set()

    def word(self, pool: Pool) -> str:
        """A word that this task has not used yet."""
        word = self.rng.choice([word for word in half(pool, self.split) if word.lower() not in self._used])
        self._used.add(word.lower())
        return word

    def words(self, pool: Pool, count: int) -> list[str]:
        return [self.word(pool) for _ in range(count)]

    def filler(self, pool: Pool) -> str:
        """A word for bulk text: it may come again, but is none of those that the task is about."""
        words = half(pool, self.split)
        while (word := self.rng.choice(words)).lower() in self._used:
            pass
        return word

    def number(self, digits: int) -> str:
        """A number of so many digits, new to this task."""
        while True:
            number = str(self.rng.randrange(10 ** (digits - 1), 10**digits))
            if self.owns(number) and number not in self._used:
                self._used.add(number)
                return number

    def addends(self, digits: int, count: int) -> list[str]:
        """Numbers whose sum belongs to the split too."""
        while True:
            numbers = [self.number(digits) for _ in range(count)]
            if self.owns(str(sum(map(int, numbers)))):
                return numbers
            self._used.difference_update(numbers)

    def value(self) -> str:
        """A word, or a number of 2 to 4 digits."""
        return self.word("thing") if self.rng.random() < 0.5 else self.number(self.rng.randint(2, 4))

    def file(self, ending: str) -> str:
        return f"{self.word('stem')}.{ending}"

    def owns(self, token: str) -> bool:
        """Whether a computed answer belongs to this task's split."""
        return split_of(token) == self.split

    def phrase(self, phrasings: Sequence[str], **slots: str) -> str:
        return self.rng.choice(phrasings).format(**slots)
