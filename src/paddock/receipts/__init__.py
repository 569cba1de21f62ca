"""Receipts: proof of which model, library, options and seed an answer came from, as far as hashes can prove it.

Everything here is pure but the files of keys. `docs/explanation/determinism.md` says what a receipt does not prove.
"""

from paddock.receipts.canonical import canonical, digest, parse, text_digest, token_digest
from paddock.receipts.chain import chain_line, reply_of, sealed, signed, without_receipt
from paddock.receipts.checking import CheckedLine, Checker, MalformedLine
from paddock.receipts.comparing import (
    AnswerDiffers,
    BytesDiffer,
    Comparison,
    IdentityDiffers,
    compare,
    first_difference,
    first_place,
)
from paddock.receipts.receipt import (
    FORMAT,
    Answered,
    AppliedAdapter,
    Asked,
    HashedFile,
    Identity,
    Receipt,
    Seed,
    Signature,
    UsedCpu,
    UsedLibrary,
    receipt_hash,
)
from paddock.receipts.signing import SigningKey, load_public_key
