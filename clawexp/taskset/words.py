"""The words that workbench tasks are made of, each belonging to one split for good.

The split of a word is a hash of its spelling, so a word that stands in two pools falls on the same side in
both, and training and held-out tasks can share no content. None of these words occurs in the phrasings.
"""

from functools import cache
from hashlib import blake2b
from typing import Literal

from clawexp.records import Split

Pool = Literal["stem", "key", "column", "thing", "person", "mark"]

POOLS: dict[Pool, str] = {
    "stem": """
        agenda alpha annex app archive audit backup badge basic beta board book box branch brief budget
        cache card case cert chart clean client club code contact core cost crew daily data deal deck
        delta demo dept desk diary digest dock draft echo email entry event exam exit expo facts fee feed
        final first flag fleet form front fund gamma gate goal grade grant green group guide hall head
        help hire history home hotel index intake intro inbox items job kit lab label latest launch lease
        ledger legal lesson letter level local log loan lunch mail main manual map market master media
        meet memo menu minutes mobile month motto news night note notice office offer old online outline
        outbox pack page panel paper parts pass pay people phase pilot plan press prices profile proof
        prompt public quote range rates recap recipe record refund rent reply report review ride
        risk roster route rules sales sample saved scan score season sector seed series setup share sheet
        ship shop site sketch slate slip slot smart source spare spec staff stage start state stats status
        stock store story study summary supply survey task tax teams terms test text theme thread tickets
        times titles todo topic tour track trade trial trip tutor unit update vendor venue visit vote
        wages week wiki wing work year zone
    """,
    "key": """
        accent action active address admin alarm alias allow angle area author auto band base batch bias
        bind bits block border bucket buffer burst cap chunk cipher class clock color command cookie cpu
        cron cut cycle debug decay default delay depth device digit disk domain drive edge engine epoch
        factor fetch field filter flush focus folder font force frame gain grid heap height host
        hour icon idle image input interval ip joint jump kind lane lang layer leader length limit link
        locale lock logo loop margin max memory method metric min minute mode model mount mute nice node
        offset output owner padding parent path pause peer period pin pixel policy pool port prefix
        priority proxy queue quota rack radius rank rate ratio realm redo refresh region repeat retry role
        room root salt scale scheme scope second secret server shard shell shift side signal size sleep
        socket span speed spool step style suffix swap tag target tempo tick tint token tone trace tries
        ttl tube type unix user vault verbose version view volume wait watch weight width window worker
        wrap zoom
    """,
    "column": """
        age animal bay bird bonus brand building bus car chair city coach color country course cup day
        dish door drink floor flower food fruit game gift grade hat hobby hour house job key language
        locker meal metal mentor month mood nation pet phone plant plate rank region river role room
        school score seat shift shirt shoe size snack song spice sport stamp state station street suit
        team title tool town toy train tree vehicle wage wine
    """,
    "thing": """
        acorn amber anchor apple apricot arrow atlas bacon bagel bamboo banana barley basil basket beach
        beacon bean bear beaver bell berry birch bison blue bottle bread breeze brick bridge bronze broom
        brown bucket butter button cabin cactus camel camera candle canoe canyon carbon cargo carpet
        carrot castle cat cedar cello chalk cherry chess cider cinema circle clay cliff cloud clover cobra
        cocoa coffee comet copper coral corn cotton crab crane cream crow crystal cyan daisy dawn deer
        desert diamond dolphin donkey dove dragon drum duck eagle earth eel elm ember emerald falcon
        feather fern ferry fig finch fire fish flint flute forest fox frog garlic garnet ginger giraffe
        glass glove goat gold goose grape grass gravel gray hammer harbor harp hawk hazel heron hill honey
        horse ice iguana indigo iris iron island ivory ivy jade jasmine jelly jungle kale kayak kettle
        kiwi koala ladder lagoon lake lamp lark lava leaf lemon lentil lilac lily lime linen lion lizard
        lobster lotus magnet mango maple marble meadow melon mint mirror moon moose moss moth mouse mud
        mule needle nickel nut oak oasis oat ocean olive onion onyx opal orange orchid otter owl oyster
        paint palm panda papaya parrot peach peanut pear pearl pebble pencil pepper piano pig pigeon
        pillow pine pink planet plum polar pond pony poplar poppy potato prairie pumpkin purple python
        quail quartz rabbit radio rain raven reef ribbon rice ridge ring robin rocket rope rose ruby rust
        saddle saffron sage sail salmon sand sapphire scarf seal shadow shark sheep silk silver sky snail
        snow spider spoon spruce squid star steel stone storm straw sugar sun swan tea thunder tiger
        timber tin toast topaz tower trout tulip tuna turtle valley velvet violet violin walnut walrus
        water wave whale wheat willow wind wolf wood wool yak yellow zebra zinc
    """,
    "person": """
        aaron abel ada adam agnes aida alan albert alex alice alma amir amy ana andre anita anna anton ari
        arthur astrid ben bella beth bob boris bruno carl carla carol cecil celia chen cleo clara colin
        cora dana daniel daria david dean diana dora dylan ed edith edna elena eli ella elsa emil emma
        eric erika esther eva evan felix fiona flora frank freda fred gabe gina glen grace greta gus hana
        hank hans hector heidi helen henry hugo ian ida igor ines ingrid irene isaac ivan jack jacob jan
        jane jean jenny jim joan joel john jonas joy juan judy julia june karen karl kate ken kim kira
        kurt lara lars laura lea leo leon lena lewis lila linda lisa liam lola lou louis lucy luis luke
        luna lydia mara marc maria mario mark marta martin mary max maya mei mia mike mila milo mina mona
        nadia nancy naomi nasir ned nell nick nina noah nora olga oliver omar oscar otto owen paul paula
        pedro peter petra phil pia quinn ralph ramon raul rita robert roman rosa ross roy ruth ryan sally
        sam sara sasha saul sean selma simon sofia sonia stella stan sven tara ted tess theo tim tina tom
        tony ursula vera victor vince wanda ward wendy will xena yara yuri zara zelda zoe
    """,
    "mark": """
        ALERT AUDIT BUILD CRASH DEBUG DENY DONE DROP ERROR FAIL FATAL FIXED HALT INFO LATE LOST OPEN PANIC
        RETRY SKIP SLOW TRACE URGENT WARN
    """,
}
"""Words by pool: file stems, setting keys, table columns, cells and values, first names, log marks."""


def split_of(token: str) -> Split:
    """The split that a word or number belongs to, in capitals or not. `split_of("port")` never changes."""
    return "train" if blake2b(token.lower().encode(), digest_size=4).digest()[0] % 2 else "eval"


@cache
def half(pool: Pool, split: Split) -> tuple[str, ...]:
    """The words of a pool that belong to a split, in alphabetical order."""
    return tuple(sorted({word for word in POOLS[pool].split() if split_of(word) == split}))
