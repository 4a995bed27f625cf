"""A vocabulary of 97 tokens: the printable characters of ASCII, line feed, and the end of the text."""

from types import SimpleNamespace

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from inflight_engine.grammars.compiled import Grammars
from inflight_engine.request import Thinking

CHARACTERS = [chr(number) for number in range(32, 127)] + ["\n"]
EOS = len(CHARACTERS)


def ids_of(text):
    return [CHARACTERS.index(character) for character in text]


def text_of(token_ids):
    return "".join(CHARACTERS[token_id] for token_id in token_ids if token_id != EOS)


def vocabulary():
    tokens = [character.encode() for character in CHARACTERS] + [b"<eos>"]
    wrapped = SimpleNamespace(eos_token_id=EOS, bos_token_id=None, tokens=tokens, special_token_ids=[EOS])
    wrapped = type("Encoder", (), {**vars(wrapped), "__call__": lambda self, text: ids_of(text.decode())})()
    return LLTokenizer(TokenizerWrapper(wrapped))


def grammars():
    return Grammars(vocabulary)


def regex(pattern):
    return LLMatcher.grammar_from_regex(pattern)


def thinking(**more):
    return Thinking(tuple(ids_of("<t>")), tuple(ids_of("</t>")), **more)
