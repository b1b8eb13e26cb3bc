"""The training network against the engine's numpy reference, and documents in one row."""

import numpy as np
import pytest
import torch
from tests.arrays import converted
from training.config import TOY
from training.network import ANSWER, NOT_LEARNED, Batch, Network

from strata.reference.decoder import ReferenceDecoder
from strata.reference.draft_layer import DraftState, ReferenceDraftLayer

LENGTH = 64  # of a document; the toy's budget of 32 cells is less


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(3)
    made = Network(TOY.spec())
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name and "linear_attn" not in name:
                parameter.normal_(std=0.2)
            elif "ple.conv1d" in name or "in_proj_a" in name or "A_log" in name:
                parameter.normal_(std=0.3)
    return made


@pytest.fixture(scope="module")
def weights(network):
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return converted(state, TOY.config())


@pytest.fixture(scope="module")
def batch():
    """Two documents in one row, with an end of text inside the first."""
    torch.manual_seed(4)
    tokens = torch.randint(0, 8000, (1, 2 * LENGTH))
    tokens[0, 10] = TOY.eos_id
    offset = (torch.arange(2 * LENGTH) % LENGTH)[None]
    return Batch(tokens, offset, torch.full((1, 2 * LENGTH), ANSWER))


def test_logits_are_the_reference_s(network, weights, batch):
    with torch.no_grad():
        ours = network.logits(batch, is_sparse=True)[0].numpy()
    decoder = ReferenceDecoder(TOY.spec(), weights, np.float64)
    for first in (0, LENGTH):
        state = decoder.initial_state()
        theirs = decoder.forward(batch.tokens[0, first : first + LENGTH].numpy(), state)
        assert np.abs(ours[first : first + LENGTH] - theirs).max() < 1e-4


def test_selection_leaves_cells_out(network, batch):
    """Without this the test above would say nothing of the indexer."""
    with torch.no_grad():
        sparse = network.logits(batch, is_sparse=True)
        dense = network.logits(batch, is_sparse=False)
    assert torch.allclose(sparse[0, :32], dense[0, :32], atol=1e-5)
    assert not torch.allclose(sparse[0, 48:LENGTH], dense[0, 48:LENGTH], atol=1e-3)


def test_first_drafts_are_the_reference_s(network, weights, batch):
    """Hits of the first draft, of a target put where the reference's pick is and where not."""
    spec = TOY.spec()
    decoder = ReferenceDecoder(spec, weights, np.float64)
    drafter = ReferenceDraftLayer(spec, weights, np.float64)
    tokens = batch.tokens[0, :LENGTH].numpy().copy()
    streams, _ = decoder.forward_streams(tokens, decoder.initial_state())
    state: DraftState = drafter.initial_state()
    _, logits = drafter.read(streams[:-2], tokens[1:-1], state)
    picked = int(logits[-1].argmax())
    kind = torch.zeros(1, LENGTH, dtype=torch.int64)
    kind[0, -1] = ANSWER
    for target, hits in ((picked, 1.0), ((picked + 1) % spec.vocab_size, 0.0)):
        ids = torch.from_numpy(tokens.copy())[None]
        ids[0, -1] = target
        with torch.no_grad():
            losses = network(
                Batch(ids, torch.arange(LENGTH)[None], kind), is_sparse=True, num_drafts=1
            )
        expected = np.log(np.exp(logits[-1] - logits[-1].max()).sum()) + logits[-1].max()
        assert losses.draft_hits[0].item() == hits
        assert losses.draft[0].item() == pytest.approx(expected - logits[-1][target], abs=2e-4)


def test_only_learned_tokens_count(network, batch):
    """The loss of a row is that of its learned tokens alone, of a document's first one never."""
    kind = torch.full_like(batch.kind, NOT_LEARNED)
    kind[0, LENGTH] = ANSWER  # nothing before it in its document
    kind[0, LENGTH + 7] = ANSWER
    with torch.no_grad():
        losses = network(Batch(batch.tokens, batch.offset, kind), is_sparse=False, num_drafts=0)
        logits = network.logits(batch, is_sparse=False)[0, LENGTH + 6]
    expected = torch.nn.functional.cross_entropy(logits, batch.tokens[0, LENGTH + 7])
    assert losses.answer.item() == pytest.approx(expected.item(), abs=1e-4)


def test_the_trunk_does_not_learn_from_drafts(network, batch):
    network.zero_grad()
    losses = network(batch, is_sparse=False, num_drafts=2)
    sum(losses.draft).backward()
    trunk = [p.grad for n, p in network.named_parameters() if not n.startswith("mtp.")]
    assert all(grad is None or not grad.any() for grad in trunk)
    assert network.mtp.fc_hidden.weight.grad.any()
    network.zero_grad()


def test_the_indexer_alone_learns_from_its_loss(network, batch):
    network.zero_grad()
    network(batch, is_sparse=False, num_drafts=0).index.backward()
    learned = {n for n, p in network.named_parameters() if p.grad is not None and p.grad.any()}
    assert learned
    assert all(".indexer." in name for name in learned)
    network.zero_grad()
